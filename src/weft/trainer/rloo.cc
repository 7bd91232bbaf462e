#include "weft/trainer/rloo.h"

#include <numeric>

#include "weft/trainer/advantages.h"
#include "weft/trainer/losses.h"
#include "weft/trainer/policy_gradient.h"

namespace weft {
namespace {

class Rloo final : public PolicyGradient {
 public:
  Rloo(const RlooSection& config, const KlSection& kl) : PolicyGradient(kl), config_(config) {}

  Importance importance() const override { return Importance::kAnswer; }

  LearningPlan prepare(const StepData& data, StepMetrics&) override {
    advantages_ = leave_one_out_advantages(charged_rewards(data), data.experience.group_size);
    LearningPlan plan;
    plan.answers.resize(advantages_.size());
    std::iota(plan.answers.begin(), plan.answers.end(), std::size_t{0});
    adapt_coefficient(data);
    return plan;
  }

  AnswerLoss loss(const StepData& data, std::span<const std::size_t> answers,
                  const TokenScores& scores) const override {
    std::vector<double> advantages, weights;
    std::vector<std::size_t> tokens;
    for (const std::size_t i : answers) {
      advantages.push_back(advantages_[i]);
      const double importance = data.importance.empty() ? 1 : data.importance[i].front();
      weights.push_back(importance / data.answers);
      tokens.push_back(data.length(i));
    }
    Loss policy = clipped_answer_loss(scores.logprobs, gather(data.old_logprobs, answers), tokens,
                                      advantages, weights, config_.clip, config_.clip);
    AnswerLoss loss{policy.value, {.logprobs = std::move(policy.gradient)}, policy.clipped};
    add_kl(data, answers, scores, std::vector<double>(scores.logprobs.size(), 1 / data.answers),
           loss);
    return loss;
  }

 private:
  RlooSection config_;
  std::vector<double> advantages_;  // [answers]
};

}  // namespace

std::unique_ptr<Algorithm> make_rloo(const RlooSection& config, const KlSection& kl) {
  return std::make_unique<Rloo>(config, kl);
}

}  // namespace weft
