#include "weft/trainer/advantages.h"

#include <cmath>
#include <numeric>

#include "weft/base/check.h"

namespace weft {
namespace {

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Requires: two values at least.
double variance(std::span<const double> values, double mean) {
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares / static_cast<double>(values.size() - 1);
}

}  // namespace

std::vector<double> group_advantages(std::span<const double> rewards, std::size_t group_size,
                                     bool by_deviation) {
  WEFT_CHECK(group_size >= 2 && rewards.size() % group_size == 0);
  std::vector<double> advantages;
  for (std::size_t begin = 0; begin < rewards.size(); begin += group_size) {
    const auto group = rewards.subspan(begin, group_size);
    const double mean = sum(group) / static_cast<double>(group_size);
    const double scale = by_deviation ? std::sqrt(variance(group, mean)) + 1e-4 : 1.0;
    for (const double reward : group) advantages.push_back((reward - mean) / scale);
  }
  return advantages;
}

std::vector<double> leave_one_out_advantages(std::span<const double> rewards,
                                             std::size_t group_size) {
  WEFT_CHECK(group_size >= 2 && rewards.size() % group_size == 0);
  std::vector<double> advantages;
  for (std::size_t begin = 0; begin < rewards.size(); begin += group_size) {
    const auto group = rewards.subspan(begin, group_size);
    const double total = sum(group);
    for (const double reward : group) {
      advantages.push_back(reward - (total - reward) / static_cast<double>(group_size - 1));
    }
  }
  return advantages;
}

std::vector<double> generalized_advantages(std::span<const double> rewards,
                                           std::span<const double> values, double gamma,
                                           double lambda) {
  WEFT_CHECK(rewards.size() == values.size());
  std::vector<double> advantages(rewards.size());
  double next_value = 0, next_advantage = 0;
  for (std::size_t tok = rewards.size(); tok-- > 0;) {
    const double delta = rewards[tok] + gamma * next_value - values[tok];
    next_advantage = advantages[tok] = delta + gamma * lambda * next_advantage;
    next_value = values[tok];
  }
  return advantages;
}

void whiten(std::span<double> values) {
  if (values.size() < 2) return;
  const double mean = sum(values) / static_cast<double>(values.size());
  const double scale = std::sqrt(variance(values, mean) + 1e-8);
  for (double& value : values) value = (value - mean) / scale;
}

}  // namespace weft
