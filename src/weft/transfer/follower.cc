#include "weft/transfer/follower.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/digest/digest.h"
#include "weft/format/json.h"
#include "weft/transfer/internal/answers.h"
#include "weft/transfer/peer_error.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5'000};

Result<HeadPlace> parse_head(std::string_view body) {
  const auto value = parse_json(body);
  const auto* const object = value ? value->if_object() : nullptr;
  HeadPlace place;
  if (object != nullptr) place = {string_member(*object, "id"), string_member(*object, "label")};
  if (!try_parse_digest(place.id)) return Error(ErrorCode::kCorrupt, "the head has no id");
  return place;
}

http::Request head_request(const std::string& head, std::string_view query = "") {
  http::Request request;
  request.method = "GET";
  request.target = fmt::format("/weft/v1/heads/{}{}", http::percent_encode(head), query);
  return request;
}

}  // namespace

Result<HeadPlace> blocking_head(http::Client& source, const std::string& head) {
  WEFT_TRY(const http::Response response, source.blocking_send(head_request(head)));
  auto place =
      response.status < 400 ? parse_head(response.body) : Result<HeadPlace>(peer_error(response));
  if (!place) return std::move(place).error().with_context(source.server().text());
  return place;
}

HeadFollower::HeadFollower(std::unique_ptr<http::Client> source, Options options, Moved moved)
    : source_(std::move(source)),
      options_(std::move(options)),
      moved_(std::move(moved)),
      known_id_(options_.known_id),
      thread_([this] { run(); }) {}

void HeadFollower::blocking_stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  source_->cancel();
  if (thread_.joinable()) thread_.join();
}

void HeadFollower::run() {
  set_thread_name("weft-follow");
  milliseconds pause = kFirstPause;
  while (true) {
    const std::string known_before = known_id_;
    auto place = blocking_poll();
    Result<void> done;
    if (!place) {
      done = std::move(place).error();
    } else if (*place) {
      done = moved_(**place);
      if (done) known_id_ = (*place)->id;
    }
    if (done) {
      pause = kFirstPause;
      // A source that does not wait must not be asked all the time.
      if (blocking_pause(known_before == known_id_ ? kFirstPause : milliseconds(0))) return;
      continue;
    }
    if (done.error().code() != ErrorCode::kCancelled) {
      log_warning("following {}#{}: {}; again in {} ms", source_->server().text(), options_.head,
                  done.error().message(), pause.count());
    }
    if (blocking_pause(pause)) return;
    pause = std::min(2 * pause, kLongestPause);
  }
}

Result<std::optional<HeadPlace>> HeadFollower::blocking_poll() {
  http::Request request =
      head_request(options_.head, fmt::format("?wait={}", options_.wait.count()));
  if (!known_id_.empty()) request.headers.add("If-None-Match", '"' + known_id_ + '"');
  constexpr int kNotModified = 304;
  auto response = source_->blocking_send(request);
  if (response && response->status == kNotModified) return std::optional<HeadPlace>();
  const auto answer = internal::answer_of(std::move(response));
  if (!answer.response) return answer.response.error();
  WEFT_TRY(HeadPlace place, parse_head(answer.response->body));
  if (place.id == known_id_) return std::optional<HeadPlace>();
  return std::optional(std::move(place));
}

// True: it is time to stop.
bool HeadFollower::blocking_pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return stopped_; });
}

}  // namespace weft
