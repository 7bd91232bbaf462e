#pragma once
// Losses as plain arithmetic on log-probabilities and values. A loss is its value and its
// derivative by each of its first inputs; Policy::backward() takes it from there. Pure functions in
// double, so that derivatives can be held against differences.

#include <cstddef>
#include <span>
#include <vector>

namespace weft {

struct Loss {
  double value = 0;
  std::vector<double> gradient;  // [inputs], of the value by each of them
  std::size_t clipped = 0;       // inputs that were cut, and have no gradient for it
};

// - sum_t w_t min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t), r_t = exp(new_t - old_t). `weights`
// hold the normalisation (1 / tokens of the batch for a mean over tokens), and importance weights
// where old_t is not what sampled the token. All spans are [tokens]. Source: Schulman et al.,
// "Proximal policy optimization algorithms", equation 7; two bounds from Yu et al., "DAPO", section
// 3.1.
Loss clipped_policy_loss(std::span<const double> logprobs, std::span<const double> old_logprobs,
                         std::span<const double> advantages, std::span<const double> weights,
                         double clip_low, double clip_high);

// The same of whole answers: the ratio of an answer is that of its probabilities, the product of
// its tokens'. `tokens` are the answers' lengths, `advantages` and `weights` theirs;
// log-probabilities are of all answers' tokens. Source: Ahmadian et al., "Back to basics", section
// 3 (an answer is one action), clipped as in TRL's RLOO.
Loss clipped_answer_loss(std::span<const double> logprobs, std::span<const double> old_logprobs,
                         std::span<const std::size_t> tokens, std::span<const double> advantages,
                         std::span<const double> weights, double clip_low, double clip_high);

// sum_t weight max((V_t - R_t)^2, (clip(V_t, old V_t - clip, old V_t + clip) - R_t)^2) / 2. All
// spans are [tokens]. Source: OpenAI's baselines, ppo2/model.py; as in TRL's PPO.
Loss clipped_value_loss(std::span<const double> values, std::span<const double> old_values,
                        std::span<const double> returns, double clip, double weight);

// - sum_t w_t log pi_t: cross-entropy on given tokens, where w_t is 0 for tokens that are context.
Loss cross_entropy(std::span<const double> logprobs, std::span<const double> weights);

// - mean_i log sigma(chosen_i - rejected_i - margin_i): the likelihood of preferences when answers
// are as good as their scores say. The gradient is [chosen..., rejected...]; margins may be empty.
// Source: Bradley and Terry (1952); Ouyang et al., "Training language models to follow instructions
// with human feedback", equation 1; margins from Touvron et al., "Llama 2", equation 2.
Loss bradley_terry_loss(std::span<const double> chosen, std::span<const double> rejected,
                        std::span<const double> margins);

enum class PreferenceLoss { kDpo, kIpo };

// Of one pair, with h = (chosen - its reference) - (rejected - its reference), all
// log-probabilities of whole answers. DPO: - log sigma(beta h), from Rafailov et al., "Direct
// preference optimization", equation 7. IPO: (h - 1 / (2 beta))^2, from Azar et al., "A general
// theoretical paradigm to understand learning from human preferences", equation 17.
struct PairLoss {
  double value = 0;
  double slope = 0;  // derivative by `chosen`; that by `rejected` is its negative
};
PairLoss preference_loss(PreferenceLoss kind, double chosen, double rejected,
                         double reference_chosen, double reference_rejected, double beta);

// How much a token counts whose version is not the one that ratios are taken to: w_t =
// min(exp(old_t - sampled_t), cap), old_t by the trainer's policy before the update, sampled_t by
// the version that sampled the token. No gradient passes through it. Source: Yao et al., "Your
// efficient RL framework secretly brings you off-policy RL training" (2025), truncated importance
// sampling; Fu et al., "AReaL", section 5.2 (decoupled PPO).
std::vector<double> truncated_importance_weights(std::span<const double> old_logprobs,
                                                 std::span<const double> sampled_logprobs,
                                                 double cap);
// The same of a whole answer, as one action: min(exp(sum_t (old_t - sampled_t)), cap). Source:
// Ionides, "Truncated importance sampling" (2008); TRL's `sequence_truncate`.
double truncated_answer_importance(std::span<const double> old_logprobs,
                                   std::span<const double> sampled_logprobs, double cap);

// What an answer that comes near its longest loses: 0 up to `limit - buffer` tokens, then falling
// linearly to -1 at `limit`, -1 for what was cut there. Source: Yu et al., "DAPO", equation 13.
double overlong_penalty(std::size_t tokens, bool ended, std::size_t limit, std::size_t buffer);

}  // namespace weft
