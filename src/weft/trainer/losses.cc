#include "weft/trainer/losses.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/base/check.h"

namespace weft {
namespace {

// min(r A, clip(r) A) and its derivative by log r.
struct ClippedGain {
  double value = 0, slope = 0;
  bool is_clipped = false;
};

ClippedGain clipped_gain(double log_ratio, double advantage, double clip_low, double clip_high) {
  const double ratio = std::exp(log_ratio);
  const double gain = ratio * advantage;
  const double clipped = std::clamp(ratio, 1 - clip_low, 1 + clip_high) * advantage;
  if (clipped < gain) return {clipped, 0, true};
  return {gain, gain, false};
}

// log(1 / (1 + exp(-x))) without overflow.
double log_sigmoid(double x) {
  return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
}

double sigmoid(double x) {
  return std::exp(log_sigmoid(x));
}

}  // namespace

Loss clipped_policy_loss(std::span<const double> logprobs, std::span<const double> old_logprobs,
                         std::span<const double> advantages, std::span<const double> weights,
                         double clip_low, double clip_high) {
  WEFT_CHECK(logprobs.size() == old_logprobs.size() && logprobs.size() == advantages.size() &&
             logprobs.size() == weights.size());
  Loss loss;
  for (std::size_t tok = 0; tok < logprobs.size(); ++tok) {
    const ClippedGain gain =
        clipped_gain(logprobs[tok] - old_logprobs[tok], advantages[tok], clip_low, clip_high);
    loss.value -= weights[tok] * gain.value;
    loss.gradient.push_back(-weights[tok] * gain.slope);
    loss.clipped += gain.is_clipped ? 1 : 0;
  }
  return loss;
}

Loss clipped_answer_loss(std::span<const double> logprobs, std::span<const double> old_logprobs,
                         std::span<const std::size_t> tokens, std::span<const double> advantages,
                         std::span<const double> weights, double clip_low, double clip_high) {
  WEFT_CHECK(logprobs.size() == old_logprobs.size() && tokens.size() == advantages.size() &&
             tokens.size() == weights.size());
  Loss loss;
  std::size_t tok = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double log_ratio = 0;
    for (const std::size_t end = tok + tokens[i]; tok < end; ++tok) {
      log_ratio += logprobs[tok] - old_logprobs[tok];
    }
    const ClippedGain gain = clipped_gain(log_ratio, advantages[i], clip_low, clip_high);
    loss.value -= weights[i] * gain.value;
    loss.gradient.insert(loss.gradient.end(), tokens[i], -weights[i] * gain.slope);
    loss.clipped += gain.is_clipped ? tokens[i] : 0;
  }
  WEFT_CHECK(tok == logprobs.size());
  return loss;
}

Loss clipped_value_loss(std::span<const double> values, std::span<const double> old_values,
                        std::span<const double> returns, double clip, double weight) {
  WEFT_CHECK(values.size() == old_values.size() && values.size() == returns.size());
  Loss loss;
  for (std::size_t tok = 0; tok < values.size(); ++tok) {
    const double error = values[tok] - returns[tok];
    const double clipped =
        std::clamp(values[tok], old_values[tok] - clip, old_values[tok] + clip) - returns[tok];
    const bool is_clipped = clipped * clipped > error * error;
    loss.value += weight / 2 * (is_clipped ? clipped * clipped : error * error);
    loss.gradient.push_back(is_clipped ? 0.0 : weight * error);
    loss.clipped += is_clipped ? 1 : 0;
  }
  return loss;
}

Loss cross_entropy(std::span<const double> logprobs, std::span<const double> weights) {
  WEFT_CHECK(logprobs.size() == weights.size());
  Loss loss;
  for (std::size_t tok = 0; tok < logprobs.size(); ++tok) {
    loss.value -= weights[tok] * logprobs[tok];
    loss.gradient.push_back(-weights[tok]);
  }
  return loss;
}

Loss bradley_terry_loss(std::span<const double> chosen, std::span<const double> rejected,
                        std::span<const double> margins) {
  WEFT_CHECK(chosen.size() == rejected.size() &&
             (margins.empty() || margins.size() == chosen.size()));
  Loss loss;
  loss.gradient.resize(2 * chosen.size());
  const auto count = static_cast<double>(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const double lead = chosen[i] - rejected[i] - (margins.empty() ? 0.0 : margins[i]);
    loss.value -= log_sigmoid(lead) / count;
    loss.gradient[i] = -sigmoid(-lead) / count;
    loss.gradient[chosen.size() + i] = -loss.gradient[i];
  }
  return loss;
}

PairLoss preference_loss(PreferenceLoss kind, double chosen, double rejected,
                         double reference_chosen, double reference_rejected, double beta) {
  const double h = (chosen - reference_chosen) - (rejected - reference_rejected);
  if (kind == PreferenceLoss::kIpo) {
    const double error = h - 1 / (2 * beta);
    return {error * error, 2 * error};
  }
  return {-log_sigmoid(beta * h), -beta * sigmoid(-beta * h)};
}

std::vector<double> truncated_importance_weights(std::span<const double> old_logprobs,
                                                 std::span<const double> sampled_logprobs,
                                                 double cap) {
  WEFT_CHECK(old_logprobs.size() == sampled_logprobs.size());
  std::vector<double> weights;
  for (std::size_t tok = 0; tok < old_logprobs.size(); ++tok) {
    weights.push_back(std::min(std::exp(old_logprobs[tok] - sampled_logprobs[tok]), cap));
  }
  return weights;
}

double truncated_answer_importance(std::span<const double> old_logprobs,
                                   std::span<const double> sampled_logprobs, double cap) {
  WEFT_CHECK(old_logprobs.size() == sampled_logprobs.size());
  double log_ratio = 0;
  for (std::size_t tok = 0; tok < old_logprobs.size(); ++tok) {
    log_ratio += old_logprobs[tok] - sampled_logprobs[tok];
  }
  return std::min(std::exp(log_ratio), cap);
}

double overlong_penalty(std::size_t tokens, bool ended, std::size_t limit, std::size_t buffer) {
  if (!ended || tokens > limit) return -1;
  const std::size_t free = limit - std::min(buffer, limit);
  if (tokens <= free) return 0;
  return -static_cast<double>(tokens - free) / static_cast<double>(buffer);
}

}  // namespace weft
