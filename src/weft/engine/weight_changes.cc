// What happens between two steps when the weights change.

#include <utility>

#include "weft/base/check.h"
#include "weft/engine/engine_impl.h"

namespace weft {

void EngineImpl::swap_weights(std::shared_ptr<const WeightSet> weights, WeightChange change,
                              std::function<void(SwapReport)> done) {
  auto bound = ModelWeights::bind(config_, std::move(weights));
  // Whoever stages a set has checked it against the layout long before.
  WEFT_CHECK(bound.has_value());
  post([this, model = std::make_shared<ModelWeights>(std::move(*bound)), change = std::move(change),
        done = std::move(done)] { change_weights(std::move(*model), change, done); });
}

void EngineImpl::patch_weights(std::function<Result<void>()> patch, WeightChange change,
                               std::function<void(Result<SwapReport>)> done) {
  if (change.on_update == OnUpdate::kFinish) {
    return done(Error(ErrorCode::kUnsupported,
                      "on_update: finish needs the old values, and a patch writes over them"));
  }
  post([this, patch = std::move(patch), change = std::move(change), done = std::move(done)] {
    if (auto patched = patch(); !patched) return done(std::move(patched).error());
    change_weights(current_->weights, change, done);
  });
}

// Between two steps: all that are scheduled from now on see the new weights.
void EngineImpl::change_weights(ModelWeights weights, WeightChange change,
                                std::function<void(SwapReport)> done) {
  const auto old = std::exchange(
      current_,
      std::make_shared<RunningSet>(std::move(weights),
                                   std::make_shared<const VersionName>(std::move(change.version))));
  version_.with([&](auto& version) { version = current_->version; });
  scheduler_.change_weights();
  for (auto next = generations_.begin(); next != generations_.end();) {
    Generation& generation = *(next++)->second;  // it may end
    if (generation.set == old) {
      update(generation, generation.on_update.value_or(change.on_update));
    } else if (generation.set && generation.set->weights.set == current_->weights.set) {
      continue_on_current(generation);  // what it wanted to end on is served again
    }
  }
  old->released = std::move(change.released);
  retired_ = old;
  changes_.push_back({old, std::move(done)});
}

void EngineImpl::update(Generation& generation, OnUpdate on_update) {
  const bool patched = generation.set->weights.set == current_->weights.set;
  switch (on_update) {
    case OnUpdate::kContinue:
      return continue_on_current(generation);
    case OnUpdate::kRecompute:
      return recompute(generation);
    case OnUpdate::kFinish:
      if (!patched) return;
      break;
    case OnUpdate::kAbort:
      break;
  }
  finish(generation, {.reason = FinishReason::kAbort});
}

void EngineImpl::continue_on_current(Generation& generation) {
  generation.set = current_;
  scheduler_.carry_over(generation);
}

void EngineImpl::recompute(Generation& generation) {
  generation.set = current_;
  generation.prompt_rows_scored = 0;
  scheduler_.recompute(generation);
}

void EngineImpl::report_changes() {
  for (Change& change : std::exchange(changes_, {})) {
    SwapReport report;
    report.stall_us = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - step_end_).count());
    report.running = scheduler_.running();
    report.retired = change.old->weights.set;
    // Before it is said that the change is made: whoever hears that may send the next version.
    change.old.reset();
    if (change.done) change.done(std::move(report));
  }
}

}  // namespace weft
