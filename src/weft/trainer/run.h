#pragma once
// Run: what every phase and every algorithm needs of one run of `weft train`: its config, task and
// policy, its servers, the way of weights to them, and its books. One thread.
//
// A run's state, all that it would need to go on as if it had never stopped, is: the phase and the
// step, problems() (its random numbers), policy().state() (weights and optimizer), the same of a
// reference or reward model, the algorithm's own state(), the summary so far, and the version
// that the servers hold.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/model/config.h"
#include "weft/trainer/config.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"
#include "weft/trainer/stopwatch.h"
#include "weft/trainer/tasks.h"
#include "weft/trainer/train.h"
#include "weft/trainer/weight_sync.h"

namespace weft {

// What derive_seed() keeps apart.
enum SeedUse : std::uint64_t { kWeightSeed = 1, kProblemSeed, kRolloutSeed, kHeldOutSeed };

class Run {
 public:
  // Makes the policy, writes its random weights to out/start and connects to servers of it. Both
  // arguments must outlive the run. Blocks. Errors: those of the files and the servers.
  static Result<std::unique_ptr<Run>> blocking_start(const TrainConfig& config,
                                                     const TrainEnvironment& environment);

  const TrainConfig& config() const { return config_; }
  const ModelConfig& model() const { return model_; }
  const Task& task() const { return *task_; }
  ProblemSource& problems() { return *problems_; }
  Policy& policy() { return *policy_; }
  std::span<const std::unique_ptr<http::Client>> servers() const { return servers_; }
  RunSummary& summary() { return summary_; }

  // Errors: kCancelled if the process was asked to stop.
  Result<void> stop_if_asked() const;
  void print(std::string_view line) const { environment_.print(line); }

  // See WeightSync; the counts of checks go into the summary, too.
  Result<void> blocking_publish(std::uint64_t version, StepMetrics& metrics);
  Result<void> blocking_check_versions(const Experience& experience, std::uint64_t offset,
                                       StepMetrics& metrics);
  // Learning from tokens that are not what they seem is worse than stopping: kCorrupt where a count
  // of `metrics` is past its bound in [check].
  Result<void> check_bounds(const StepMetrics& metrics) const;
  // The same of the whole run.
  Result<void> check_discriminating_share() const;

  // The sum over all servers of a metric of their /metrics. Blocks.
  double blocking_engine_total(std::string_view metric) const;
  // One step of `steps`: a line for people, an object in metrics.jsonl. Blocks.
  Result<void> blocking_record(const StepMetrics& metrics, std::uint64_t steps);
  // The trained model, the summary with `failure` in it, the plot. Blocks. Errors: `failure`, too.
  Result<void> blocking_finish(std::optional<Error> failure);

 private:
  Run(const TrainConfig& config, const TrainEnvironment& environment)
      : config_(config), environment_(environment), out_(config.out) {}

  Result<void> blocking_prepare();
  Result<void> blocking_connect();

  const TrainConfig& config_;
  const TrainEnvironment& environment_;
  std::filesystem::path out_;
  Stopwatch clock_;
  std::string model_json_;
  ModelConfig model_;
  std::unique_ptr<Task> task_;
  std::optional<ProblemSource> problems_;
  std::unique_ptr<Policy> policy_;
  std::vector<std::unique_ptr<http::Client>> servers_;
  std::unique_ptr<WeightSync> sync_;
  std::ofstream metrics_file_;
  std::vector<StepMetrics> steps_;
  RunSummary summary_;
};

}  // namespace weft
