#include "weft/engine/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {
namespace {

float power(double theta, std::size_t i, std::uint64_t head_dim) {
  return std::pow(static_cast<float>(theta),
                  static_cast<float>(2 * i) / static_cast<float>(head_dim));
}

// Long waves are stretched, short ones kept, those between blended.
float llama3_frequency(const RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto original = static_cast<float>(rope.original_max_position_embeddings);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength > original / low) return frequency / factor;
  if (wavelength < original / high) return frequency;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// The dimension whose wave turns `turns` times over the original length.
double yarn_dimension(const RopeConfig& rope, double turns, std::uint64_t head_dim) {
  return static_cast<double>(head_dim) *
         std::log(rope.original_max_position_embeddings / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

float yarn_frequency(const RopeConfig& rope, std::size_t i, std::uint64_t head_dim) {
  const double low = std::max(0.0, std::floor(yarn_dimension(rope, rope.beta_fast, head_dim)));
  double high = std::min(static_cast<double>(head_dim - 1),
                         std::ceil(yarn_dimension(rope, rope.beta_slow, head_dim)));
  if (low == high) high += 0.001;  // as transformers does: no division by zero
  const auto ramp =
      static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
  const float kept = 1 - ramp;
  const float wave = power(rope.theta, i, head_dim);
  return 1 / (static_cast<float>(rope.factor) * wave) * (1 - kept) + 1 / wave * kept;
}

// Source: _compute_dynamic_ntk_parameters.
double dynamic_theta(const RopeConfig& rope, std::uint64_t position, std::uint64_t head_dim) {
  const double length =
      std::max(static_cast<double>(position + 1), rope.original_max_position_embeddings);
  const auto dim = static_cast<double>(head_dim);
  const double stretch =
      rope.factor * length / rope.original_max_position_embeddings - (rope.factor - 1);
  return rope.theta * std::pow(stretch, dim / (dim - 2));
}

}  // namespace

Rope::Rope(const RopeConfig& config, std::uint64_t head_dim) : config_(config) {
  for (std::size_t i = 0; i < head_dim / 2; ++i) {
    const float plain = 1 / power(config.theta, i, head_dim);
    switch (config.kind) {
      case RopeConfig::Kind::kDefault:
      case RopeConfig::Kind::kDynamic:
        frequencies_.push_back(plain);
        break;
      case RopeConfig::Kind::kLinear:
        frequencies_.push_back(plain / static_cast<float>(config.factor));
        break;
      case RopeConfig::Kind::kLlama3:
        frequencies_.push_back(llama3_frequency(config, plain));
        break;
      case RopeConfig::Kind::kYarn:
        frequencies_.push_back(yarn_frequency(config, i, head_dim));
        break;
    }
  }
}

void Rope::angles(std::uint64_t position, std::span<float> cos, std::span<float> sin) const {
  const std::uint64_t head_dim = 2 * frequencies_.size();
  const bool stretched = config_.kind == RopeConfig::Kind::kDynamic &&
                         static_cast<double>(position) >= config_.original_max_position_embeddings;
  const double theta = stretched ? dynamic_theta(config_, position, head_dim) : config_.theta;
  const auto scale = static_cast<float>(config_.attention_factor);
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const float frequency = stretched ? 1 / power(theta, i, head_dim) : frequencies_[i];
    const float angle = static_cast<float>(position) * frequency;
    cos[i] = std::cos(angle) * scale;
    sin[i] = std::sin(angle) * scale;
  }
}

}  // namespace weft
