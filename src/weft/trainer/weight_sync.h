#pragma once
// WeightSync: the way of a run's weights to its servers, and the proof that tokens come from the
// versions they name. One thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/model/config.h"
#include "weft/trainer/config.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"
#include "weft/trainer/version_check.h"
#include "weft/transfer/delta_publisher.h"

namespace weft {

class WeightSync {
 public:
  // Takes `policy` as it is for what all servers start with; nothing is sent. `config` must outlive
  // it. Errors: those of WeightLayout::make and Engine::create.
  static Result<std::unique_ptr<WeightSync>> create(const TrainConfig& config,
                                                    const ModelConfig& model, const Policy& policy);

  // From now on versions go to these servers, which must outlive it.
  void connect(std::vector<http::Client*> servers);

  // Publishes the policy as `step-<version>`; all servers have it when this returns. Sets the
  // version and the sync_* fields. Blocks. Errors: the servers', naming server and version.
  Result<void> blocking_publish(const Policy& policy, std::uint64_t version, StepMetrics& metrics);

  // Scores some evenly spaced answers again, others at each `offset`. Blocks. Errors: the engine's.
  Result<VersionCounts> blocking_check(const Experience& experience, std::uint64_t offset);

  // What was published last.
  const std::shared_ptr<const WeightSet>& published() const { return published_; }

 private:
  WeightSync(const TrainConfig& config, std::shared_ptr<const WeightLayout> layout)
      : config_(&config), layout_(std::move(layout)) {}

  Result<std::shared_ptr<const WeightSet>> weights_of(const Policy& policy) const;
  Result<void> blocking_push_to_all(const WeightSet& weights, const std::string& label,
                                    StepMetrics& metrics);

  const TrainConfig* config_;
  std::shared_ptr<const WeightLayout> layout_;
  std::shared_ptr<const WeightSet> published_;
  std::optional<VersionCheck> versions_;
  std::vector<http::Client*> servers_;
  std::optional<DeltaPublisher> publisher_;
};

}  // namespace weft
