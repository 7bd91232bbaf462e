#pragma once
// Group relative policy optimization: the mean over the tokens of a step of the clipped policy loss
// (losses.h), every token with the advantage of its answer relative to its group (advantages.h).
// Source: Shao et al., "DeepSeekMath", section 4.1.
//
// Switches: Dr. GRPO's corrections are divide_by_deviation = false and mean_over = "longest" (Liu
// et al., "Understanding R1-Zero-like training", section 3.2); DAPO's are clip_high, mean_over =
// "tokens", dynamic_sampling_rounds and overlong_buffer (Yu et al., sections 3.1 to 3.4);
// DeepSeekMath's own mean is mean_over = "answers".

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "weft/trainer/algorithm.h"

namespace weft {

// What each token of an answer of `length` tokens counts in a mean over `data`: 1 / tokens, 1 /
// (answers x length) or 1 / (answers x longest).
enum class MeanOver { kTokens, kAnswers, kLongest };
double token_weight(MeanOver mean_over, const StepData& data, std::size_t length,
                    std::size_t longest);

// Whether the rewards of each group differ, so that there is something to learn from it; [groups].
std::vector<bool> differing_groups(std::span<const double> rewards, std::size_t group_size);

std::unique_ptr<Algorithm> make_grpo(const GrpoSection& config, const KlSection& kl,
                                     std::size_t longest_answer);

}  // namespace weft
