#include "weft/trainer/train.h"

#include "weft/trainer/grpo.h"
#include "weft/trainer/improvement.h"
#include "weft/trainer/run.h"
#include "weft/trainer/sampling.h"
#include "weft/trainer/supervised.h"

namespace weft {

Result<void> blocking_train(const TrainConfig& config, const TrainEnvironment& environment) {
  WEFT_TRY(const auto run, Run::blocking_start(config, environment));
  WEFT_TRY_VOID(blocking_fine_tune(*run));
  RuleScorer scorer;
  SynchronousSource source(*run, scorer);
  const std::unique_ptr<Algorithm> algorithm = make_grpo(config.grpo);
  Result<void> improved = blocking_improve(*run, source, *algorithm);
  // A run that failed its own checks says so in its summary; one that was cut off has none.
  if (!improved && improved.error().code() != ErrorCode::kCorrupt) return improved;
  return run->blocking_finish(improved ? std::nullopt : std::optional(improved.error()));
}

}  // namespace weft
