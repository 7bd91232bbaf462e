#pragma once
// Reward models: the policy's trunk with a scalar head, which judges an answer after its last
// token, trained on pairs of which one answer is better (Bradley and Terry's likelihood, losses.h).
// One thread.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/run.h"
#include "weft/trainer/tasks.h"

namespace weft {

// The share of pairs whose better answer the model likes better.
double pair_accuracy(Policy& model, std::span<const Preference> pairs);

// Makes a reward model of the run's policy: trains scalar head and trunk of a copy on the task's
// preferences, as [reward_model] says, and saves it in `folder`. Blocks. Errors: kCancelled;
// kInternal for a loss that is not finite, naming step and tensor; those of the files.
Result<std::unique_ptr<Policy>> blocking_train_reward_model(Run& run,
                                                            const std::filesystem::path& folder);
// Loads what the above saved, or transformers as a LlamaForSequenceClassification in bf16. Blocks.
// Errors: those of CheckpointFiles and Policy::create; kInvalidArgument for a model of another
// vocabulary, or a tensor that is not there or another thing, naming it.
Result<std::unique_ptr<Policy>> blocking_load_reward_model(const std::filesystem::path& folder,
                                                           unsigned threads);

// Rewards by such a model.
class RewardModelScorer final : public Scorer {
 public:
  // An answer that has no end loses `missing_end_penalty`: no pair had one.
  RewardModelScorer(std::unique_ptr<Policy> model, double missing_end_penalty)
      : model_(std::move(model)), missing_end_penalty_(missing_end_penalty) {}

  Result<std::vector<std::optional<double>>> blocking_score(const Experience& experience) override;

 private:
  std::unique_ptr<Policy> model_;
  double missing_end_penalty_;
};

}  // namespace weft
