#include "weft/trainer/grpo.h"

#include <algorithm>
#include <cmath>

#include "weft/trainer/advantages.h"
#include "weft/trainer/losses.h"
#include "weft/trainer/policy_gradient.h"

namespace weft {
namespace {

MeanOver mean_over_of(std::string_view name) {
  if (name == "answers") return MeanOver::kAnswers;
  return name == "longest" ? MeanOver::kLongest : MeanOver::kTokens;
}

class Grpo final : public PolicyGradient {
 public:
  Grpo(const GrpoSection& config, const KlSection& kl, std::size_t longest)
      : PolicyGradient(kl),
        config_(config),
        mean_over_(mean_over_of(config.mean_over)),
        longest_(longest) {}

  LearningPlan prepare(const StepData& data, StepMetrics&) override {
    std::vector<double> rewards = charged_rewards(data);
    for (std::size_t i = 0; i < rewards.size() && config_.overlong_buffer > 0; ++i) {
      rewards[i] += overlong_penalty(data.length(i), data.experience.rollouts[i].ended, longest_,
                                     config_.overlong_buffer);
    }
    advantages_ =
        group_advantages(rewards, data.experience.group_size, config_.divide_by_deviation);
    LearningPlan plan;
    for (std::size_t i = 0; i < advantages_.size(); ++i) {
      // Groups that are all right or all wrong have no gradient, unless the KL has one.
      if (needs_reference() || std::abs(advantages_[i]) > 1e-6) plan.answers.push_back(i);
    }
    adapt_coefficient(data);
    return plan;
  }

  AnswerLoss loss(const StepData& data, std::span<const std::size_t> answers,
                  const TokenScores& scores) const override {
    std::vector<double> advantages, weights;
    for (const std::size_t i : answers) {
      advantages.insert(advantages.end(), data.length(i), advantages_[i]);
      weights.insert(weights.end(), data.length(i),
                     token_weight(mean_over_, data, data.length(i), longest_));
    }
    Loss policy = clipped_policy_loss(scores.logprobs, gather(data.old_logprobs, answers),
                                      advantages, with_importance(data, answers, weights),
                                      config_.clip_low, config_.clip_high);
    AnswerLoss loss{policy.value, {.logprobs = std::move(policy.gradient)}, policy.clipped};
    add_kl(data, answers, scores, weights, loss);
    return loss;
  }

 private:
  GrpoSection config_;
  MeanOver mean_over_;
  std::size_t longest_;
  std::vector<double> advantages_;  // [answers]
};

}  // namespace

double token_weight(MeanOver mean_over, const StepData& data, std::size_t length,
                    std::size_t longest) {
  switch (mean_over) {
    case MeanOver::kTokens:
      return 1 / data.tokens;
    case MeanOver::kAnswers:
      return 1 / (data.answers * static_cast<double>(length));
    case MeanOver::kLongest:
      break;
  }
  return 1 / (data.answers * static_cast<double>(longest));
}

std::vector<bool> differing_groups(std::span<const double> rewards, std::size_t group_size) {
  std::vector<bool> differ;
  for (std::size_t begin = 0; begin < rewards.size(); begin += group_size) {
    const auto [least, most] = std::ranges::minmax(rewards.subspan(begin, group_size));
    differ.push_back(least < most);
  }
  return differ;
}

std::unique_ptr<Algorithm> make_grpo(const GrpoSection& config, const KlSection& kl,
                                     std::size_t longest_answer) {
  return std::make_unique<Grpo>(config, kl, longest_answer);
}

}  // namespace weft
