#pragma once
// Random: the trainer's source of randomness. The same numbers on every machine and standard
// library (the standard's distributions promise neither), so that a run is a function of its seed.
// One thread. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators"
// (SplitMix64).

#include <cstdint>

namespace weft {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, count). Requires: count > 0 and far below 2^64, where the bias of % does not
  // show.
  std::uint64_t below(std::uint64_t count) { return next() % count; }
  // Random(state()) goes on as this would.
  std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_;
};

// A seed of its own for (seed, a, b), such as (run, step, prompt). Fits the int64 that vLLM's API
// takes.
inline std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  const std::uint64_t first = Random(seed).next();
  const std::uint64_t second = Random(first ^ a).next();
  return Random(second ^ b).next() >> 1;
}

}  // namespace weft
