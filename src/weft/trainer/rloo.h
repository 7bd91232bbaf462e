#pragma once
// RLOO, REINFORCE with the mean of a prompt's other answers as its baseline: - mean_i A_i pi(answer
// i) / pi_old(answer i), A_i = r_i - mean of the others (advantages.h), a whole answer being one
// action; the ratio, which is 1 at a step's first update, is clipped (losses.h), and an answer of
// older versions counts by its own importance. The KL belongs in the reward. Source: Ahmadian et
// al., "Back to basics: revisiting REINFORCE-style optimization for learning from human feedback in
// LLMs", section 3.

#include <memory>

#include "weft/trainer/algorithm.h"

namespace weft {

std::unique_ptr<Algorithm> make_rloo(const RlooSection& config, const KlSection& kl);

}  // namespace weft
