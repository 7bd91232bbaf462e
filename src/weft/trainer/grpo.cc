#include "weft/trainer/grpo.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/base/check.h"

namespace weft {
namespace {

class Grpo final : public Algorithm {
 public:
  explicit Grpo(const GrpoSection& config) : config_(config) {}

  std::vector<std::size_t> prepare(const Experience& experience) override {
    advantages_ = group_advantages(experience.rewards, experience.group_size);
    total_tokens_ = 0;
    std::vector<std::size_t> learned;
    for (std::size_t i = 0; i < advantages_.size(); ++i) {
      total_tokens_ += experience.rollouts[i].tokens.size();
      // Groups that are all right or all wrong have no gradient.
      if (std::abs(advantages_[i]) > 1e-6) learned.push_back(i);
    }
    return learned;
  }

  AnswerLoss loss(const Experience& experience, std::span<const std::size_t> answers,
                  std::span<const float> logprobs) const override {
    std::vector<float> sampled;
    std::vector<double> advantages;
    for (const std::size_t i : answers) {
      const std::vector<float>& tokens = experience.rollouts[i].logprobs;
      sampled.insert(sampled.end(), tokens.begin(), tokens.end());
      advantages.insert(advantages.end(), tokens.size(), advantages_[i]);
    }
    PolicyLoss loss = clipped_policy_loss(logprobs, sampled, advantages, config_.clip_low,
                                          config_.clip_high, total_tokens_);
    return {loss.loss, std::move(loss.gradient), loss.clipped};
  }

 private:
  const GrpoSection& config_;
  std::vector<double> advantages_;  // [answers]
  std::size_t total_tokens_ = 0;
};

}  // namespace

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

std::unique_ptr<Algorithm> make_grpo(const GrpoSection& config) {
  return std::make_unique<Grpo>(config);
}

}  // namespace weft
