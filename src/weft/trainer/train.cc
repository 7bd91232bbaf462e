#include "weft/trainer/train.h"

#include <chrono>
#include <memory>

#include "weft/trainer/async_source.h"
#include "weft/trainer/grpo.h"
#include "weft/trainer/improvement.h"
#include "weft/trainer/run.h"
#include "weft/trainer/sampling.h"
#include "weft/trainer/scorer.h"
#include "weft/trainer/supervised.h"

namespace weft {
namespace {

Result<std::unique_ptr<Scorer>> make_scorer(const ScoreSection& score, const Task& task) {
  if (score.kind == "rule") return make_rule_scorer(task, score.rules);
  HttpScorerOptions options;
  options.url = score.url;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(score.timeout_s * 1e3));
  options.retries = static_cast<unsigned>(score.retries);
  options.batch = score.batch;
  return make_http_scorer(options);
}

std::unique_ptr<ExperienceSource> make_source(Run& run, Scorer& scorer) {
  if (run.config().flow.asynchronous) return std::make_unique<AsynchronousSource>(run, scorer);
  return std::make_unique<SynchronousSource>(run, scorer);
}

}  // namespace

Result<void> blocking_train(const TrainConfig& config, const TrainEnvironment& environment) {
  WEFT_TRY(const auto run, Run::blocking_start(config, environment));
  WEFT_TRY_VOID(blocking_fine_tune(*run));
  WEFT_TRY(const std::unique_ptr<Scorer> scorer, make_scorer(config.score, run->task()));
  const std::unique_ptr<ExperienceSource> source = make_source(*run, *scorer);
  const std::unique_ptr<Algorithm> algorithm = make_grpo(config.grpo);
  Result<void> improved = blocking_improve(*run, *source, *algorithm);
  // A run that failed its own checks says so in its summary; one that was cut off has none.
  if (!improved && improved.error().code() != ErrorCode::kCorrupt) return improved;
  return run->blocking_finish(improved ? std::nullopt : std::optional(improved.error()));
}

}  // namespace weft
