#pragma once
// Random: numbers that follow from a seed alone, the same on every machine. One thread.

#include <chrono>
#include <cstdint>

namespace weft::sim {

using Duration = std::chrono::microseconds;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // Source: splitmix64, S. Vigna, https://prng.di.unimi.it/splitmix64.c
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 to n - 1. Requires: n > 0.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  bool chance(unsigned percent) { return below(100) < percent; }
  Duration between(Duration low, Duration high) {
    return Duration(static_cast<Duration::rep>(between(static_cast<std::uint64_t>(low.count()),
                                                       static_cast<std::uint64_t>(high.count()))));
  }

 private:
  std::uint64_t state_;
};

}  // namespace weft::sim
