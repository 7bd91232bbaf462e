#pragma once
// WeightSync: the way of a run's weights to its servers, and the proof that tokens come from the
// versions they name. One thread.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/model/config.h"
#include "weft/trainer/config.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"
#include "weft/trainer/run_state.h"
#include "weft/trainer/server_pool.h"
#include "weft/trainer/version_check.h"

namespace weft {

class WeightSync {
 public:
  // Takes `policy` as it is for what all servers start with; nothing is sent. `config` must outlive
  // it. Errors: those of WeightLayout::make and Engine::create.
  static Result<std::unique_ptr<WeightSync>> create(const TrainConfig& config,
                                                    const ModelConfig& model, const Policy& policy);

  // From now on versions go to these servers, which must outlive it.
  void connect(ServerPool& servers) { servers_ = &servers; }

  // Publishes the policy as version_label(version); all servers that are there have it when this
  // returns. Sets the version and the sync_* fields. Blocks. Errors: the servers', naming server
  // and version.
  Result<void> blocking_publish(const Policy& policy, std::uint64_t version, StepMetrics& metrics);

  // Scores some evenly spaced answers again, others at each `offset`; in the asynchronous flow it
  // also compares log-probabilities, as VersionCheck does. Blocks. Errors: the engine's.
  Result<VersionCounts> blocking_check(const Experience& experience, std::uint64_t offset,
                                       LogprobDifferences& differences);

  // What was published last.
  const std::shared_ptr<const WeightSet>& published() const { return published_; }

  // The policy's weights, as they would be published.
  Result<std::shared_ptr<const WeightSet>> weights_of(const Policy& policy) const;

  // The weights of the version before the last one, by which the check tells versions apart; and
  // back, as `version`. Errors: kCorrupt naming the tensor that is not there.
  std::vector<StateTensor> state() const;
  Result<void> restore(std::uint64_t version, std::span<const StateTensor> state);

 private:
  WeightSync(const TrainConfig& config, std::shared_ptr<const WeightLayout> layout)
      : config_(&config), layout_(std::move(layout)) {}

  Result<void> blocking_push_to_all(const std::shared_ptr<const WeightSet>& weights,
                                    const std::string& label, StepMetrics& metrics);

  const TrainConfig* config_;
  std::shared_ptr<const WeightLayout> layout_;
  std::shared_ptr<const WeightSet> published_, before_;  // the last version, and the one before
  std::optional<VersionCheck> versions_;
  ServerPool* servers_ = nullptr;
};

}  // namespace weft
