#pragma once
// Online direct preference optimization: of each prompt's answers, sampled from the policy, the one
// with the highest reward is preferred to the one with the lowest; the mean over the pairs of DPO's
// loss, or IPO's (losses.h), against the policy that the run began with. Groups of equal rewards
// have no pair. The loss holds for pairs of any sampler, older versions too. Source: Guo et al.,
// "Direct language model alignment from online AI feedback"; for old samples Noukhovitch et al.,
// "Asynchronous RLHF", section 3.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "weft/trainer/algorithm.h"

namespace weft {

// Of each group, the first answer with the highest reward and the first with the lowest, where they
// differ.
std::vector<std::pair<std::size_t, std::size_t>> best_and_worst(std::span<const double> rewards,
                                                                std::size_t group_size);

std::unique_ptr<Algorithm> make_online_dpo(const DpoSection& config);

}  // namespace weft
