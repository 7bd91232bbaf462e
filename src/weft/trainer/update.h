#pragma once
// One step's learning: from experience to changed weights. Scores the answers, lets the algorithm
// fix its advantages, and takes `epochs` x `minibatches` optimizer steps, each from as many
// gradients as micro-batches make it. One thread.

#include <cstddef>
#include <span>
#include <string_view>

#include "weft/trainer/algorithm.h"
#include "weft/trainer/config.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"

namespace weft {

class PolicyUpdate {
 public:
  // All must outlive it. `reference` is null for an algorithm that needs none.
  PolicyUpdate(const TrainConfig& config, Policy& policy, Policy* reference, Algorithm& algorithm)
      : config_(config), policy_(policy), reference_(reference), algorithm_(algorithm) {}

  // `newest` is the label of the version that the policy still is. Sets the metrics of learning,
  // and adds the differences of log-probabilities between it and the servers, over the tokens that
  // come from that version. Stops where loss or gradient are not finite, as the metrics say.
  void learn(const Experience& experience, std::string_view newest, StepMetrics& metrics);

 private:
  struct Comparison;
  StepData make_data(const Experience& experience);
  void score_first(StepData& data, bool has_importance, Comparison& comparison,
                   StepMetrics& metrics);
  void score_rest(const Experience& experience, std::span<const std::size_t> learned,
                  Comparison& comparison);
  void take_steps(const StepData& data, LearningPlan plan, Comparison* comparison,
                  StepMetrics& metrics);
  void take_step(const StepData& data, std::span<const std::size_t> answers, std::size_t together,
                 Comparison* comparison, StepMetrics& metrics);

  const TrainConfig& config_;
  Policy& policy_;
  Policy* reference_;
  Algorithm& algorithm_;
};

}  // namespace weft
