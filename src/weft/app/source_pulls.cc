#include "weft/app/source_pulls.h"

#include <utility>

#include "weft/transfer/host_target.h"
#include "weft/transfer/puller.h"

namespace weft {

void SourcePulls::pull(const std::string& owner, const VersionAt& version, Receiver::Done done) {
  thread_.post([this, owner, version, done = std::move(done)] {
    const auto staged = blocking_stage(owner, version);
    state_.with([](State& state) { return std::exchange(state.source, nullptr); });
    if (staged) return receiver_.update(owner, std::nullopt, done);
    receiver_.refuse_update(owner, staged.error());
    done(staged.error());
  });
}

Result<void> SourcePulls::blocking_stage(const std::string& owner, const VersionAt& version) {
  WEFT_TRY(http::Url url, http::Url::parse(version.source));
  const std::shared_ptr<http::Client> source = http::Client::make(std::move(url), options_);
  const bool stopped = state_.with([&](State& state) {
    state.source = source;
    return state.stopped;
  });
  if (stopped) return Error(ErrorCode::kCancelled, "the server stops");
  WEFT_TRY(const std::string id, blocking_resolve_version(*source, version.version));
  WEFT_TRY_VOID(
      blocking_pull_into(*receiver_.upload_host(), owner, *source, id, &receiver_.source()));
  return {};
}

void SourcePulls::blocking_stop() {
  const auto source = state_.with([](State& state) {
    state.stopped = true;
    return state.source;
  });
  if (source) source->cancel();
  thread_.blocking_stop();
}

}  // namespace weft
