#include "weft/trainer/ppo.h"

#include <numeric>

#include "weft/trainer/advantages.h"
#include "weft/trainer/losses.h"
#include "weft/trainer/policy_gradient.h"

namespace weft {
namespace {

class Ppo final : public PolicyGradient {
 public:
  Ppo(const PpoSection& config, const KlSection& kl) : PolicyGradient(kl), config_(config) {}

  bool needs_values() const override { return true; }

  LearningPlan prepare(const StepData& data, StepMetrics&) override {
    std::vector<std::vector<double>> rewards = kl_rewards(data);
    rewards.resize(data.values.size());
    advantages_.clear();
    returns_.clear();
    LearningPlan plan;
    for (std::size_t i = 0; i < rewards.size(); ++i) {
      rewards[i].resize(data.length(i));
      rewards[i].back() += data.experience.rewards[i];
      advantages_.push_back(
          generalized_advantages(rewards[i], data.values[i], config_.gamma, config_.gae_lambda));
      auto& returns = returns_.emplace_back(advantages_.back());
      for (std::size_t tok = 0; tok < returns.size(); ++tok) returns[tok] += data.values[i][tok];
      plan.answers.push_back(i);
    }
    if (config_.whiten_advantages) whiten_all();
    adapt_coefficient(data);
    return plan;
  }

  AnswerLoss loss(const StepData& data, std::span<const std::size_t> answers,
                  const TokenScores& scores) const override {
    const double weight = 1 / data.tokens;
    const std::vector<double> weights(scores.logprobs.size(), weight);
    Loss policy = clipped_policy_loss(
        scores.logprobs, gather(data.old_logprobs, answers), gather(advantages_, answers),
        with_importance(data, answers, weights), config_.clip, config_.clip);
    Loss value =
        clipped_value_loss(scores.values, gather(data.values, answers), gather(returns_, answers),
                           config_.value_clip, config_.value_coefficient * weight);
    AnswerLoss loss{policy.value + value.value,
                    {.logprobs = std::move(policy.gradient), .values = std::move(value.gradient)},
                    policy.clipped};
    if (config_.entropy_coefficient > 0) {
      const double bonus = config_.entropy_coefficient * weight;
      loss.loss -= bonus * std::accumulate(scores.entropies.begin(), scores.entropies.end(), 0.0);
      loss.gradient.entropies.assign(scores.entropies.size(), -bonus);
    }
    add_kl(data, answers, scores, weights, loss);
    return loss;
  }

 private:
  void whiten_all() {
    std::vector<double> all;
    for (const auto& row : advantages_) all.insert(all.end(), row.begin(), row.end());
    whiten(all);
    auto next = all.begin();
    for (auto& row : advantages_) {
      for (double& advantage : row) advantage = *next++;
    }
  }

  PpoSection config_;
  std::vector<std::vector<double>> advantages_, returns_;  // [answers][tokens]
};

}  // namespace

std::unique_ptr<Algorithm> make_ppo(const PpoSection& config, const KlSection& kl) {
  return std::make_unique<Ppo>(config, kl);
}

}  // namespace weft
