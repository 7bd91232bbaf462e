#include "delta_pairs.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace weft::bench {
namespace {

constexpr unsigned kSteps = 60;
constexpr std::size_t kRow = 4096;
// Rows differ in scale; the median weight is 0.019.
constexpr float kSigma = 0.028f, kRowSpread = 0.25f;
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;

// S. Vigna's xorshift128+.
class Random {
 public:
  explicit Random(std::uint64_t seed)
      : s_{seed * 0x9E3779B97F4A7C15 + 1, seed ^ 0xD1B54A32D192ED03} {
    for (int i = 0; i < 20; ++i) next();
  }
  std::uint64_t next() {
    std::uint64_t a = s_[0];
    const std::uint64_t b = s_[1];
    s_[0] = b;
    a ^= a << 23;
    s_[1] = a ^ b ^ (a >> 18) ^ (b >> 5);
    return s_[1] + b;
  }
  float normal() {  // G. Box and M. Muller
    const float u = static_cast<float>((next() >> 40) + 1) * 0x1p-24f;
    const float v = static_cast<float>(next() >> 40) * 0x1p-24f;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi_v<float> * v);
  }

 private:
  std::uint64_t s_[2];
};

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float to_f32(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

std::vector<float> normals(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = random.normal();
  return out;
}

}  // namespace

Moves simulate_moves(const Training& training) {
  Random random(7);
  Moves out;
  out.before.resize(kMoves);
  out.after.resize(kMoves);
  for (std::size_t i = 0; i < kMoves; ++i) {
    const double mean = training.drift * static_cast<double>(random.normal());
    double m = 0, v = 0, moved = 0, decay1 = 1, decay2 = 1;
    for (unsigned step = 1; step <= kSteps; ++step) {
      if (step == kSteps - training.steps_per_publish + 1) {
        out.before[i] = static_cast<float>(moved);
      }
      const double g = mean + static_cast<double>(random.normal());
      m = kBeta1 * m + (1 - kBeta1) * g;
      v = kBeta2 * v + (1 - kBeta2) * g * g;
      decay1 *= kBeta1;
      decay2 *= kBeta2;
      moved -=
          training.learning_rate * (m / (1 - decay1)) / (std::sqrt(v / (1 - decay2)) + kEpsilon);
    }
    out.after[i] = static_cast<float>(moved);
  }
  return out;
}

void make_tile(const Moves& moves, std::uint64_t seed, std::size_t count, std::uint16_t* base,
               std::uint16_t* next) {
  static const std::vector<float> unit = normals(std::size_t{1} << 16, 5);
  Random random(seed + 1000);
  for (std::size_t row = 0; row < count; row += kRow) {
    const float scale = kSigma * std::exp(kRowSpread * random.normal());
    const std::size_t offset = random.next() % kMoves;
    for (std::size_t j = 0; j < kRow; ++j) {
      const float initial = to_f32(to_bf16(scale * unit[random.next() % unit.size()]));
      const std::size_t move = (offset + j) % kMoves;
      base[row + j] = to_bf16(initial + moves.before[move]);
      next[row + j] = to_bf16(initial + moves.after[move]);
    }
  }
}

}  // namespace weft::bench
