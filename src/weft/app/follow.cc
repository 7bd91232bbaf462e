#include "weft/app/follow.h"

#include <future>
#include <utility>

#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/transfer/host_target.h"

namespace weft {

Result<FollowedHead> FollowedHead::parse(std::string_view text) {
  FollowedHead out;
  const std::size_t hash = text.find('#');
  WEFT_TRY(out.source, http::Url::parse(text.substr(0, hash)));
  if (hash != std::string_view::npos) out.head = text.substr(hash + 1);
  if (!out.head.empty()) return out;
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: no head after the #", text));
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
  WEFT_TRY(const PulledUpload pulled,
           blocking_pull_into(*host, owner_, source_, place.id, &receiver_.source()));
  const char* const way = pulled.deltas > 0              ? "deltas"
                          : pulled.delta_failure.empty() ? "full"
                                                         : "fallback";
  pulls_.with([&](auto& pulls) { ++pulls[way]; });
  CommitRequest commit;
  if (!place.label.empty()) commit.label = place.label;
  commit.origin = source_.server().text();
  std::promise<Result<CommitReport>> promise;
  host->commit(owner_, pulled.epoch, std::move(commit),
               [&](Result<CommitReport> report) { promise.set_value(std::move(report)); });
  WEFT_TRY(const CommitReport report, promise.get_future().get());
  log_info("{}: {} ({}) serves; it came {}", owner_, report.version.id, report.version.label,
           pulled.deltas > 0 ? "by " + counted(pulled.deltas, "delta") : "in full");
  return {};
}

}  // namespace weft
