#pragma once
// What PPO, GRPO and RLOO have in common: answers are made likelier or less likely by their
// advantages, and going away from a reference can be charged, in the reward of each token, r_t -
// beta k(log pi_t - log reference_t), or in the loss, + beta sum_t w_t k(...), by one of the
// estimators of kl.h.

#include <span>
#include <vector>

#include "weft/trainer/algorithm.h"

namespace weft {

class PolicyGradient : public Algorithm {
 public:
  explicit PolicyGradient(const KlSection& kl);

  bool needs_reference() const override { return has_kl_; }
  void save(RunState& state) const override;
  Result<void> restore(const RunState& state) override;

 protected:
  // What each token loses for the KL, zero or less; empty where that is not charged in the reward.
  std::vector<std::vector<double>> kl_rewards(const StepData& data) const;
  // The rewards of the answers, the KL of all their tokens included.
  std::vector<double> charged_rewards(const StepData& data) const;
  // Adds the KL to a loss of `answers`, with the tokens' `weights`, where it is charged there.
  void add_kl(const StepData& data, std::span<const std::size_t> answers, const TokenScores& scores,
              std::span<const double> weights, AnswerLoss& loss) const;
  // Adapts the coefficient to the KL of these answers, for the next step.
  void adapt_coefficient(const StepData& data);

 private:
  bool has_kl_, is_in_reward_;
  KlEstimator estimator_;
  KlCoefficient coefficient_;
};

}  // namespace weft
