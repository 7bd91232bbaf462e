#include "weft/trainer/train.h"

#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "weft/trainer/algorithm.h"
#include "weft/trainer/async_source.h"
#include "weft/trainer/improvement.h"
#include "weft/trainer/reward_model.h"
#include "weft/trainer/run.h"
#include "weft/trainer/sampling.h"
#include "weft/trainer/scorer.h"
#include "weft/trainer/supervised.h"

namespace weft {
namespace {

Result<std::unique_ptr<Scorer>> blocking_make_scorer(Run& run,
                                                     const TrainEnvironment& environment) {
  const ScoreSection& score = run.config().score;
  if (score.kind == "rule") return make_rule_scorer(run.task(), score.rules);
  if (score.kind == "reward_model") {
    auto model =
        score.model.empty()
            ? blocking_train_reward_model(run, run.out() / "reward_model")
            : blocking_load_reward_model(score.model, static_cast<unsigned>(run.config().threads));
    if (!model) return std::move(model).error();
    return std::make_unique<RewardModelScorer>(std::move(*model), score.missing_end_penalty);
  }
  HttpScorerOptions options;
  options.url = score.url;
  options.timeout = milliseconds(score.timeout_s);
  options.retries = static_cast<unsigned>(score.retries);
  options.batch = score.batch;
  options.ca_file = environment.ca_file;
  options.stop = environment.stop;
  return make_http_scorer(options);
}

std::unique_ptr<ExperienceSource> make_source(Run& run, Scorer& scorer) {
  if (run.config().flow.asynchronous) return std::make_unique<AsynchronousSource>(run, scorer);
  return std::make_unique<SynchronousSource>(run, scorer);
}

// The fine-tuned policy is what the run was for: publishes and measures it.
Result<void> blocking_show(Run& run) {
  StepMetrics metrics;
  WEFT_TRY_VOID(run.blocking_publish(0, metrics));
  WEFT_TRY_VOID(blocking_measure(run, 0, metrics));
  WEFT_TRY_VOID(run.check_bounds(metrics));
  RunSummary& summary = run.summary();
  summary.solve_rate_end = *metrics.greedy_solve_rate;
  summary.sampled_solve_rate_end = *metrics.sampled_solve_rate;
  run.print(fmt::format("held-out greedy {:.3f} sampled {:.3f}", summary.solve_rate_end,
                        summary.sampled_solve_rate_end));
  WEFT_TRY_VOID(run.blocking_save_checkpoint());
  return run.blocking_finish(std::nullopt);
}

Result<void> blocking_improve_policy(Run& run, Scorer& scorer) {
  const std::unique_ptr<ExperienceSource> source = make_source(run, scorer);
  const auto algorithm = make_algorithm(run.config(), run.task().max_answer_tokens());
  Result<void> improved = blocking_improve(run, *source, *algorithm);
  // A run that failed its own checks says so in its summary; one that was cut off has none.
  if (!improved && improved.error().code() != ErrorCode::kCorrupt) return improved;
  WEFT_TRY_VOID(run.blocking_save_checkpoint());
  return run.blocking_finish(improved ? std::nullopt : std::optional(improved.error()));
}

}  // namespace

Result<void> blocking_train(const TrainConfig& config, const TrainEnvironment& environment) {
  WEFT_TRY(const auto run, Run::blocking_start(config, environment));
  const bool improves = uses_section(config, "score");
  // One that is not there is noticed before anything is learned; one of the run's own comes later.
  const bool trains_scorer = improves && uses_section(config, "reward_model");
  std::unique_ptr<Scorer> scorer;
  if (improves && !trains_scorer) {
    WEFT_TRY(scorer, blocking_make_scorer(*run, environment));
  }
  WEFT_TRY_VOID(blocking_fine_tune(*run));
  if (config.algorithm == "sft") return blocking_show(*run);
  if (trains_scorer) {
    WEFT_TRY(scorer, blocking_make_scorer(*run, environment));
  }
  if (improves) return blocking_improve_policy(*run, *scorer);
  WEFT_TRY_VOID(blocking_train_reward_model(*run, run->out() / "checkpoint"));
  return run->blocking_finish(std::nullopt);
}

}  // namespace weft
