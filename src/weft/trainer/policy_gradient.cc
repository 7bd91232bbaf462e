#include "weft/trainer/policy_gradient.h"

#include <numeric>

namespace weft {

PolicyGradient::PolicyGradient(const KlSection& kl)
    : has_kl_(kl.coefficient > 0),
      is_in_reward_(kl.in == "reward"),
      estimator_(try_kl_estimator(kl.estimator).value_or(KlEstimator::kK3)),
      coefficient_(kl.coefficient, kl.target, kl.horizon) {}

void PolicyGradient::save(RunState& state) const {
  state.put("kl.coefficient", coefficient_.value());
}

Result<void> PolicyGradient::restore(const RunState& state) {
  WEFT_TRY(const double coefficient, state.number("kl.coefficient"));
  coefficient_.set(coefficient);
  return {};
}

std::vector<std::vector<double>> PolicyGradient::kl_rewards(const StepData& data) const {
  std::vector<std::vector<double>> rewards;
  if (!has_kl_ || !is_in_reward_) return rewards;
  for (std::size_t i = 0; i < data.reference.size(); ++i) {
    auto& row = rewards.emplace_back();
    for (std::size_t tok = 0; tok < data.length(i); ++tok) {
      const KlTerm term = kl_term(estimator_, data.old_logprobs[i][tok], data.reference[i][tok]);
      row.push_back(-coefficient_.value() * term.value);
    }
  }
  return rewards;
}

std::vector<double> PolicyGradient::charged_rewards(const StepData& data) const {
  std::vector<double> rewards = data.experience.rewards;
  const auto charges = kl_rewards(data);
  for (std::size_t i = 0; i < charges.size(); ++i) {
    rewards[i] = std::accumulate(charges[i].begin(), charges[i].end(), rewards[i]);
  }
  return rewards;
}

void PolicyGradient::add_kl(const StepData& data, std::span<const std::size_t> answers,
                            const TokenScores& scores, std::span<const double> weights,
                            AnswerLoss& loss) const {
  if (!has_kl_ || is_in_reward_) return;
  const std::vector<double> reference = gather(data.reference, answers);
  for (std::size_t tok = 0; tok < reference.size(); ++tok) {
    const double weight = coefficient_.value() * weights[tok];
    const KlTerm term = kl_term(estimator_, scores.logprobs[tok], reference[tok]);
    loss.loss += weight * term.value;
    loss.gradient.logprobs[tok] += weight * term.slope;
  }
}

void PolicyGradient::adapt_coefficient(const StepData& data) {
  if (!has_kl_) return;
  double kl = 0;
  for (std::size_t i = 0; i < data.reference.size(); ++i) {
    for (std::size_t tok = 0; tok < data.length(i); ++tok) {
      kl += data.old_logprobs[i][tok] - data.reference[i][tok];
    }
  }
  const std::size_t answers = data.reference.size();
  coefficient_.adapt(kl / static_cast<double>(answers), answers);
}

}  // namespace weft
