#include "weft/app/follow.h"

#include <future>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/digest/digest.h"
#include "weft/format/json.h"
#include "weft/transfer/host_target.h"

namespace weft {
namespace {

namespace json = boost::json;

std::string text_of(const json::object& object, std::string_view name) {
  const json::value* const value = object.if_contains({name.data(), name.size()});
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

}  // namespace

Result<FollowedHead> FollowedHead::parse(std::string_view text) {
  FollowedHead out;
  const std::size_t hash = text.find('#');
  WEFT_TRY(out.source, http::Url::parse(text.substr(0, hash)));
  if (hash != std::string_view::npos) out.head = text.substr(hash + 1);
  if (!out.head.empty()) return out;
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: no head after the #", text));
}

Result<HeadPlace> blocking_head(http::Client& source, const std::string& head) {
  http::Request request;
  request.method = "GET";
  request.target = "/weft/v1/heads/" + http::percent_encode(head);
  WEFT_TRY(const http::Response response, source.blocking_send(request));
  if (response.status >= 400)
    return http::error_of_response(response).with_context(source.server().text());
  const auto answer = parse_json(response.body);
  const json::object* const object = answer ? answer->if_object() : nullptr;
  HeadPlace place;
  if (object != nullptr) place = {text_of(*object, "id"), text_of(*object, "label")};
  if (try_parse_digest(place.id)) return place;
  return Error(ErrorCode::kCorrupt,
               fmt::format("{}: head {} has no id", source.server().text(), head));
}

Following::Following(std::unique_ptr<http::Client> source, const std::string& head,
                     std::string served, Receiver& receiver)
    : source_(*source),
      owner_(fmt::format("follow {}#{}", source->server().text(), head)),
      receiver_(receiver),
      follower_(std::move(source), {.head = head, .known_id = std::move(served)},
                [this](const HeadPlace& place) -> Result<void> {
                  lag_.store(1, std::memory_order_relaxed);
                  WEFT_TRY_VOID(blocking_take(place));
                  lag_.store(0, std::memory_order_relaxed);
                  return {};
                }) {}

Result<void> Following::blocking_take(const HeadPlace& place) {
  const auto host = receiver_.upload_host();
  WEFT_TRY(const PulledUpload pulled, blocking_pull_into(*host, owner_, source_, place.id));
  CommitRequest commit;
  if (!place.label.empty()) commit.label = place.label;
  commit.origin = source_.server().text();
  std::promise<Result<CommitReport>> promise;
  host->commit(owner_, pulled.epoch, std::move(commit),
               [&](Result<CommitReport> report) { promise.set_value(std::move(report)); });
  WEFT_TRY(const CommitReport report, promise.get_future().get());
  log_info("{}: {} ({}) serves", owner_, report.version.id, report.version.label);
  return {};
}

}  // namespace weft
