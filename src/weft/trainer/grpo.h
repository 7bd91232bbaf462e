#pragma once
// Group relative policy optimization: what it wants of each token, as plain arithmetic on
// log-probabilities. A loss here is its value and its derivative by each log-probability;
// Policy::backward() takes it from there. Source: Shao et al., "DeepSeekMath", section 4.1; the
// wider upper clip and the mean over all tokens from Yu et al., "DAPO", sections 3.1 and 3.3. No
// reference model, so no KL term.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "weft/trainer/algorithm.h"
#include "weft/trainer/config.h"

namespace weft {

// (reward - mean of its group) / (deviation of its group + 1e-4), the deviation with n - 1 below.
// `rewards` are groups of `group_size` one after the other; so is the result. Requires: group_size
// >= 2 divides rewards.size().
std::vector<double> group_advantages(std::span<const double> rewards, std::size_t group_size);

struct PolicyLoss {
  double loss = 0;              // what was added to the sum, divided by `total_tokens`
  std::vector<float> gradient;  // [tokens], of the loss by each log-probability
  std::size_t clipped = 0;      // tokens whose ratio was cut, and that have no gradient for it
};

// loss = - sum_t min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t) / total_tokens,  r_t = exp(new_t -
// sampled_t). All spans are [tokens]. `total_tokens` is of the whole step, of which these may be a
// part.
PolicyLoss clipped_policy_loss(std::span<const float> logprobs,
                               std::span<const float> sampled_logprobs,
                               std::span<const double> advantages, double clip_low,
                               double clip_high, std::size_t total_tokens);

// `config` must outlive it.
std::unique_ptr<Algorithm> make_grpo(const GrpoSection& config);

}  // namespace weft
