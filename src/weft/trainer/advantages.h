#pragma once
// Advantages: by how much answers, or tokens, were better than was to be expected. Pure functions.

#include <cstddef>
#include <span>
#include <vector>

namespace weft {

// Relative to the group: (reward - mean of its group), divided by (deviation of its group + 1e-4),
// the deviation with n - 1 below, if `by_deviation`. `rewards` are groups of `group_size` one after
// the other; so is the result. Source: Shao et al., "DeepSeekMath", section 4.1; without the
// division Liu et al., "Understanding R1-Zero-like training" (Dr. GRPO), section 3.2. Requires:
// group_size >= 2 divides rewards.size().
std::vector<double> group_advantages(std::span<const double> rewards, std::size_t group_size,
                                     bool by_deviation);

// reward - mean of the *others* of its group. Source: Ahmadian et al., "Back to basics: revisiting
// REINFORCE-style optimization" (RLOO), equation 8. Requires: as above.
std::vector<double> leave_one_out_advantages(std::span<const double> rewards,
                                             std::size_t group_size);

// Of one answer's tokens, from its last to its first: A_t = delta_t + gamma lambda A_{t+1}, delta_t
// = r_t + gamma V_{t+1} - V_t, and nothing after the last. Source: Schulman et al.,
// "High-dimensional continuous control using generalized advantage estimation", equation 16.
// Requires: equally many rewards and values.
std::vector<double> generalized_advantages(std::span<const double> rewards,
                                           std::span<const double> values, double gamma,
                                           double lambda);

// To mean 0 and deviation 1: (x - mean) / sqrt(variance + 1e-8), the variance with n - 1 below.
// Fewer than two values stay as they are.
void whiten(std::span<double> values);

}  // namespace weft
