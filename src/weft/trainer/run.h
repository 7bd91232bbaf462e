#pragma once
// Run: what every phase and every algorithm needs of one run of `weft train`: its config, task and
// policy, its servers, the way of weights to them, its books, and its state on disk. One thread,
// but for what a source of experience calls (it says so).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/model/config.h"
#include "weft/trainer/config.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/metrics_file.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"
#include "weft/trainer/run_state.h"
#include "weft/trainer/server_pool.h"
#include "weft/trainer/stopwatch.h"
#include "weft/trainer/tasks.h"
#include "weft/trainer/train.h"
#include "weft/trainer/weight_sync.h"

namespace weft {

// What derive_seed() keeps apart.
enum SeedUse : std::uint64_t {
  kWeightSeed = 1,
  kProblemSeed,
  kRolloutSeed,
  kHeldOutSeed,
  kShuffleSeed
};

// The phases of a run that have steps, in their order.
enum class Phase : std::uint64_t { kFineTune, kReward, kImprove };

class Run {
 public:
  // Makes the policy, writes its random weights to out/start and connects to servers of it, which a
  // reward model has no use for. Both arguments must outlive the run. With environment.resume the
  // state that was saved in out is read, and begin_phase() goes on from it. Blocks. Errors: those
  // of the files and the servers; kConflict if the state is of another config.
  static Result<std::unique_ptr<Run>> blocking_start(const TrainConfig& config,
                                                     const TrainEnvironment& environment);

  const TrainConfig& config() const { return config_; }
  const ModelConfig& model() const { return model_; }
  const Task& task() const { return *task_; }
  ProblemSource& problems() { return *problems_; }  // drawn from by one thread at a time
  Policy& policy() { return *policy_; }
  ServerPool& servers() { return *servers_; }  // by any thread
  RunSummary& summary() { return summary_; }
  const std::filesystem::path& out() const { return out_; }

  // Errors: kCancelled if the process was asked to stop.
  Result<void> stop_if_asked() const;
  void print(std::string_view line) const { environment_.print(line); }

  // The first step that is left of a phase; nothing if the state that is resumed from is of a later
  // one. If it is of this phase, the policy with its optimizer, the problems' random numbers, the
  // books and `part` are then as they were after the step before. Errors: kCorrupt naming what the
  // state lacks.
  Result<std::optional<std::uint64_t>> begin_phase(Phase phase, StatePart& part);
  // To be called after each step: every state.save_every steps it saves the state, and the model as
  // out/checkpoint. Blocks. Errors: those of the files; what was saved before stays.
  Result<void> blocking_end_step(Phase phase, std::uint64_t step, const StatePart& part);

  // See WeightSync; the counts of checks go into the summary, too.
  Result<void> blocking_publish(std::uint64_t version, StepMetrics& metrics);
  Result<void> blocking_check_versions(const Experience& experience, std::uint64_t offset,
                                       StepMetrics& metrics);
  // Learning from tokens that are not what they seem is worse than stopping: kCorrupt where a count
  // of `metrics` is past its bound in [check].
  Result<void> check_bounds(const StepMetrics& metrics) const;
  // A loss, a gradient or weights of `policy` that are not finite end the run: kInternal naming
  // `where` (the step), the tensor, and what is kept.
  Result<void> check_finite(std::string_view where, const Policy& policy, double loss,
                            double gradient_norm, double learning_rate) const;
  // The same as check_bounds() of the whole run.
  Result<void> check_discriminating_share() const;

  // The same for the version that the run went on from, which the servers may have lost.
  Result<void> blocking_publish_again(std::uint64_t version);
  // One step of `steps`, with what happened to the servers meanwhile: a line for people, an object
  // in metrics.jsonl. Blocks.
  Result<void> blocking_record(StepMetrics metrics, std::uint64_t steps);
  // What was published last, as out/checkpoint. Blocks.
  Result<void> blocking_save_checkpoint() const;
  // The summary with `failure` in it, the report. Blocks. Errors: `failure`, too.
  Result<void> blocking_finish(std::optional<Error> failure);

 private:
  Run(const TrainConfig& config, const TrainEnvironment& environment)
      : config_(config), environment_(environment), out_(config.out) {}

  Result<void> blocking_prepare();
  Result<void> blocking_connect();
  // metrics.jsonl, and the state if there is one to go on from.
  Result<void> blocking_open_books();
  // Which files of the last save are there, for an error.
  std::string kept() const;
  RunState state_after(Phase phase, std::uint64_t step) const;
  Result<void> restore(const RunState& state);

  const TrainConfig& config_;
  const TrainEnvironment& environment_;
  std::filesystem::path out_;
  Stopwatch clock_;
  std::string model_json_;
  ModelConfig model_;
  std::unique_ptr<Task> task_;
  std::optional<ProblemSource> problems_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<ServerPool> servers_;
  std::unique_ptr<WeightSync> sync_;
  std::optional<RunState> resumed_;  // until the phase that it is of begins
  std::optional<MetricsFile> metrics_file_;
  std::vector<StepMetrics> steps_;
  RunSummary summary_;
  double seconds_before_ = 0;  // of the run that was resumed, until its last save
  PoolCounts recorded_;        // of the servers, until the last step
};

}  // namespace weft
