#include "weft/trainer/weight_sync.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "weft/trainer/save.h"
#include "weft/trainer/stopwatch.h"
#include "weft/trainer/version_label.h"

namespace weft {

Result<std::unique_ptr<WeightSync>> WeightSync::create(const TrainConfig& config,
                                                       const ModelConfig& model,
                                                       const Policy& policy) {
  WEFT_TRY(auto layout, WeightLayout::make(expected_tensors(model)));
  std::unique_ptr<WeightSync> sync(
      new WeightSync(config, std::make_shared<const WeightLayout>(std::move(layout))));
  WEFT_TRY(sync->published_, sync->weights_of(policy));
  sync->before_ = sync->published_;
  // The oldest tokens that are learned from, the version before theirs, and some to tell how much
  // too old others are.
  const std::size_t kept = config.flow.asynchronous ? config.flow.max_lag + 4 : 4;
  WEFT_TRY(sync->versions_, VersionCheck::create(model, sync->published_, kept));
  if (config.flow.asynchronous) sync->versions_->compare_with(policy.clone());
  return sync;
}

Result<void> WeightSync::blocking_publish(const Policy& policy, std::uint64_t version,
                                          StepMetrics& metrics) {
  const Stopwatch clock;
  const FaultSection& fault = config_->fault;
  before_ = published_;
  WEFT_TRY(published_, weights_of(policy));
  metrics.version = version_label(version);
  if (fault.no_sync && version > 0) return {};
  versions_->remember(metrics.version, published_);
  if (fault.swap_labels && version == 1) {
    WEFT_TRY_VOID(blocking_push_to_all(published_, version_label(0), metrics));
    WEFT_TRY_VOID(blocking_push_to_all(before_, version_label(1), metrics));
  } else if (fault.stale_version == version && version > 0) {
    WEFT_TRY_VOID(blocking_push_to_all(before_, metrics.version, metrics));
  } else {
    WEFT_TRY_VOID(blocking_push_to_all(published_, metrics.version, metrics));
  }
  metrics.sync_ms = clock.ms();
  return {};
}

Result<void> WeightSync::blocking_push_to_all(const std::shared_ptr<const WeightSet>& weights,
                                              const std::string& label, StepMetrics& metrics) {
  // What runs at an update must go on as the new version alone would, so that each of its tokens
  // is of one version. Without the asynchronous flow nothing runs then.
  const std::string on_update = config_->flow.asynchronous ? "recompute" : "";
  WEFT_TRY(const PublishReport report, servers_->blocking_publish(weights, label, on_update));
  metrics.sync_bytes += report.sent_bytes;
  metrics.sync_full_bytes += report.full_bytes;
  metrics.sync_delta_bytes += report.delta_bytes;
  metrics.sync_fell_back += report.fell_back;
  metrics.pause_us = std::max(metrics.pause_us, report.stall_us);
  return {};
}

std::vector<StateTensor> WeightSync::state() const {
  std::vector<StateTensor> state;
  for (const TensorView& view : tensor_views(*before_)) {
    state.push_back({view.spec, {view.data.begin(), view.data.end()}});
  }
  return state;
}

Result<void> WeightSync::restore(std::uint64_t version, std::span<const StateTensor> state) {
  WEFT_TRY(std::shared_ptr<WeightSet> weights, WeightSet::blocking_allocate(layout_));
  for (std::size_t i = 0; i < layout_->tensors().size(); ++i) {
    const TensorSpec& spec = layout_->tensors()[i];
    const auto saved = std::ranges::find(state, spec, &StateTensor::spec);
    if (saved == state.end()) {
      return Error(ErrorCode::kCorrupt,
                   fmt::format("the saved state has no published {} of this shape", spec.name));
    }
    std::ranges::copy(saved->bytes, weights->tensor(i).begin());
  }
  published_ = std::move(weights);
  versions_->remember(version_label(version), published_);
  return {};
}

Result<VersionCounts> WeightSync::blocking_check(const Experience& experience, std::uint64_t offset,
                                                 LogprobDifferences& differences) {
  const std::size_t all = experience.rollouts.size();
  const std::size_t count = std::min<std::size_t>(all, config_->check.rescored_sequences);
  std::vector<std::vector<std::uint32_t>> prompts;
  std::vector<Rollout> rollouts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = (i * all / count + offset) % all;
    prompts.push_back(experience.prompts[place]);
    rollouts.push_back(experience.rollouts[place]);
  }
  return versions_->blocking_check(prompts, rollouts, differences);
}

Result<std::shared_ptr<const WeightSet>> WeightSync::weights_of(const Policy& policy) const {
  WEFT_TRY(std::shared_ptr<WeightSet> weights, WeightSet::blocking_allocate(layout_));
  policy.write_weights(*weights);
  return std::shared_ptr<const WeightSet>(std::move(weights));
}

}  // namespace weft
