#include "weft/trainer/grpo.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/base/check.h"

namespace weft {

std::vector<double> group_advantages(std::span<const double> rewards, std::size_t group_size) {
  WEFT_CHECK(group_size >= 2 && rewards.size() % group_size == 0);
  std::vector<double> advantages;
  for (std::size_t begin = 0; begin < rewards.size(); begin += group_size) {
    const auto group = rewards.subspan(begin, group_size);
    const auto count = static_cast<double>(group_size);
    const double mean = std::accumulate(group.begin(), group.end(), 0.0) / count;
    double squares = 0;
    for (const double reward : group) squares += (reward - mean) * (reward - mean);
    const double deviation = std::sqrt(squares / (count - 1));
    for (const double reward : group) advantages.push_back((reward - mean) / (deviation + 1e-4));
  }
  return advantages;
}

PolicyLoss clipped_policy_loss(std::span<const float> logprobs,
                               std::span<const float> sampled_logprobs,
                               std::span<const double> advantages, double clip_low,
                               double clip_high, std::size_t total_tokens) {
  WEFT_CHECK(logprobs.size() == sampled_logprobs.size() && logprobs.size() == advantages.size());
  PolicyLoss result;
  const auto total = static_cast<double>(total_tokens);
  for (std::size_t tok = 0; tok < logprobs.size(); ++tok) {
    const double ratio = std::exp(static_cast<double>(logprobs[tok]) - sampled_logprobs[tok]);
    const double gain = ratio * advantages[tok];
    const double clipped_gain = std::clamp(ratio, 1 - clip_low, 1 + clip_high) * advantages[tok];
    const bool is_clipped = clipped_gain < gain;
    result.loss -= std::min(gain, clipped_gain) / total;
    result.clipped += is_clipped ? 1 : 0;
    result.gradient.push_back(is_clipped ? 0.0f : static_cast<float>(-gain / total));
  }
  return result;
}

}  // namespace weft
