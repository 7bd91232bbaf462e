#include "weft/transfer/internal/delta_packs.h"

#include <algorithm>

#include <fmt/core.h>

#include "weft/transfer/internal/answers.h"
#include "weft/transfer/internal/retry.h"

namespace weft::internal {
namespace {

constexpr std::size_t kKept = 2;

http::Request get(const std::string& path) {
  http::Request request;
  request.method = "GET";
  request.target = "/weft/v1" + path;
  return request;
}

// Fills a span.
class SpanSink final : public http::BodySink {
 public:
  explicit SpanSink(std::span<std::byte> left) : left_(left) {}

  Result<std::span<std::byte>> buffer() override { return left_; }
  Result<void> filled(std::size_t size) override {
    left_ = left_.subspan(size);
    return {};
  }
  void finish() override {}
  void abort(const Error&) override {}

  bool is_full() const { return left_.empty(); }

 private:
  std::span<std::byte> left_;
};

}  // namespace

Result<std::string> DeltaFetcher::blocking_get(const std::string& path) const {
  return blocking_retry(retries_, first_wait_, [&]() -> Result<std::string> {
    Answer answer = answer_of(source_.blocking_send(get(path)));
    if (!answer.response) return answer.response.error();
    return std::move(answer.response->body);
  });
}

Result<void> DeltaFetcher::blocking_get_into(const std::string& path,
                                             std::span<std::byte> out) const {
  return blocking_retry(retries_, first_wait_, [&]() -> Result<void> {
    SpanSink sink(out);
    const Answer answer = answer_of(source_.blocking_send_into(get(path), sink));
    if (!answer.response) return answer.response.error();
    if (sink.is_full()) return {};
    return Error(ErrorCode::kCorrupt, fmt::format("{}: fewer bytes than expected", path));
  });
}

Result<std::span<const std::byte>> DeltaPacks::blocking_read(std::size_t row,
                                                             std::span<std::byte> scratch) {
  const DeltaPackCut::Place& place = places_.at(row);
  WEFT_TRY(const Pack pack, blocking_pack(place.pack));
  std::ranges::copy(std::span(*pack).subspan(place.offset_bytes, scratch.size()), scratch.begin());
  return std::span<const std::byte>(scratch);
}

std::uint64_t DeltaPacks::fetched_bytes() const {
  const std::lock_guard lock(mutex_);
  return fetched_bytes_;
}

Result<DeltaPacks::Pack> DeltaPacks::blocking_pack(std::size_t pack) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const auto& each) { return each.first == pack; });
    if (found != kept_.end()) return found->second;
    if (under_way_.insert(pack).second) break;
    fetched_.wait(lock);
  }
  lock.unlock();
  auto fetched = blocking_fetch(pack);
  lock.lock();
  under_way_.erase(pack);
  if (fetched) {
    fetched_bytes_ += (*fetched)->size();
    kept_.emplace_front(pack, *fetched);
    if (kept_.size() > kKept) kept_.pop_back();
  }
  fetched_.notify_all();
  return fetched;
}

Result<DeltaPacks::Pack> DeltaPacks::blocking_fetch(std::size_t pack) const {
  const DeltaPack& row = index_.packs[pack];
  std::vector<std::byte> bytes(row.size_bytes);
  const std::string path = fmt::format("{}/packs/{}", path_, pack);
  WEFT_TRY_VOID(fetcher_.blocking_get_into(path, bytes));
  if (digest_of(bytes) == row.digest) {
    return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  }
  return Error(ErrorCode::kCorrupt, fmt::format("{}: another digest than the index has", path));
}

}  // namespace weft::internal
