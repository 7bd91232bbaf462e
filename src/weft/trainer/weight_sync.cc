#include "weft/trainer/weight_sync.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "weft/trainer/save.h"
#include "weft/trainer/stopwatch.h"

namespace weft {

Result<std::unique_ptr<WeightSync>> WeightSync::create(const TrainConfig& config,
                                                       const ModelConfig& model,
                                                       const Policy& policy) {
  WEFT_TRY(auto layout, WeightLayout::make(expected_tensors(model)));
  std::unique_ptr<WeightSync> sync(
      new WeightSync(config, std::make_shared<const WeightLayout>(std::move(layout))));
  WEFT_TRY(sync->published_, sync->weights_of(policy));
  WEFT_TRY(sync->versions_, VersionCheck::create(model, sync->published_));
  return sync;
}

void WeightSync::connect(std::vector<http::Client*> servers) {
  servers_ = servers;
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  publisher_.emplace(std::move(servers), config_->server.deltas ? kAll : 0);
}

Result<void> WeightSync::blocking_publish(const Policy& policy, std::uint64_t version,
                                          StepMetrics& metrics) {
  const Stopwatch clock;
  const auto older = published_;
  WEFT_TRY(published_, weights_of(policy));
  metrics.version = fmt::format("step-{}", version);
  versions_->remember(metrics.version, published_);
  if (config_->fault.swap_labels && version == 1) {
    WEFT_TRY_VOID(blocking_push_to_all(*published_, "step-0", metrics));
    WEFT_TRY_VOID(blocking_push_to_all(*older, "step-1", metrics));
  } else {
    WEFT_TRY_VOID(blocking_push_to_all(*published_, metrics.version, metrics));
  }
  metrics.sync_ms = clock.ms();
  return {};
}

Result<void> WeightSync::blocking_push_to_all(const WeightSet& weights, const std::string& label,
                                              StepMetrics& metrics) {
  PushOptions options;
  options.label = label;
  auto results = publisher_->blocking_publish(tensor_views(weights), options);
  for (std::size_t i = 0; i < results.size(); ++i) {
    Result<PushReport>& pushed = results[i];
    if (!pushed) {
      return std::move(pushed).error().with_context(
          fmt::format("publishing {} to {}", label, servers_[i]->server().text()));
    }
    metrics.sync_bytes += pushed->sent_bytes;
    metrics.sync_full_bytes += pushed->total_bytes;
    metrics.sync_delta_bytes +=
        pushed->payload_bytes.at(static_cast<std::size_t>(Encoding::kDelta));
    metrics.sync_fell_back += pushed->fell_back;
    metrics.pause_us = std::max(metrics.pause_us, pushed->stall_us);
  }
  return {};
}

Result<VersionCounts> WeightSync::blocking_check(const Experience& experience,
                                                 std::uint64_t offset) {
  const std::size_t all = experience.rollouts.size();
  const std::size_t count = std::min<std::size_t>(all, config_->check.rescored_sequences);
  std::vector<std::vector<std::uint32_t>> prompts;
  std::vector<Rollout> rollouts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = (i * all / count + offset) % all;
    prompts.push_back(experience.prompts[place]);
    rollouts.push_back(experience.rollouts[place]);
  }
  return versions_->blocking_check(prompts, rollouts);
}

Result<std::shared_ptr<const WeightSet>> WeightSync::weights_of(const Policy& policy) const {
  WEFT_TRY(std::shared_ptr<WeightSet> weights, WeightSet::blocking_allocate(layout_));
  policy.write_weights(*weights);
  return std::shared_ptr<const WeightSet>(std::move(weights));
}

}  // namespace weft
