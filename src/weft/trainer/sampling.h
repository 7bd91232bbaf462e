#pragma once
// Sampling: answers of a run's servers to problems, as experience. SynchronousSource is the flow in
// which a step's answers all come from the version before it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/run.h"

namespace weft {

// How answers are drawn. Their seeds are derived from the run's, `use` and `step`.
struct SamplingPlan {
  std::uint64_t count = 1;  // answers a problem
  double temperature = 1.0;
  SeedUse use = kRolloutSeed;
  std::uint64_t step = 0;
};

// Answers with the rule's rewards, and those as `rewards`. Blocks. Errors: the servers'.
Result<Experience> blocking_sample(Run& run, std::vector<Problem> problems,
                                   const SamplingPlan& plan);

// One step's answers, scored, with the metrics of how they were made.
struct Batch {
  Experience experience;
  StepMetrics metrics;
};

// Samples and scores the batch of step `number`, whose problems are a function of it and the run's
// seed. What the scorer had no score for is dropped, or an error, as score.on_failure says. Calls
// problems() and servers() of `run` alone. Blocks. Errors: the servers' and the scorer's.
Result<Batch> blocking_collect(Run& run, Scorer& scorer, std::uint64_t number);

// fault.hold_back_ms.
std::chrono::milliseconds hold_back(const TrainConfig& config);

// Every batch is sampled when it is asked for. One thread.
class SynchronousSource final : public ExperienceSource {
 public:
  // Both must outlive it.
  SynchronousSource(Run& run, Scorer& scorer) : run_(run), scorer_(scorer) {}

  Result<Experience> blocking_next(StepMetrics& metrics) override;

 private:
  Run& run_;
  Scorer& scorer_;
};

// The held-out solve rates, through the servers, and a check of the versions of what was sampled.
// Returns what the sampled answers are worth by the task's rule. Blocks. Errors: the servers' and
// the engine's.
Result<std::vector<double>> blocking_measure(Run& run, std::uint64_t step, StepMetrics& metrics);

}  // namespace weft
