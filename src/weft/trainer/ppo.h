#pragma once
// Proximal policy optimization: mean over tokens of the clipped policy loss + value_coefficient x
// the clipped value loss (losses.h) - entropy_coefficient x entropy. A token is an action: its
// advantage is estimated from the values of the policy's scalar head (advantages.h), its reward is
// that of the answer at the last token, and the charge for the KL at each. Source: Schulman et al.,
// "Proximal policy optimization algorithms", equation 9; for language models Ziegler et al.,
// "Fine-tuning language models from human preferences", section 2.

#include <memory>

#include "weft/trainer/algorithm.h"

namespace weft {

std::unique_ptr<Algorithm> make_ppo(const PpoSection& config, const KlSection& kl);

}  // namespace weft
