#pragma once
// The clock of whoever waits or measures. What decides gets the time as a value instead.

#include <chrono>

namespace weft {

inline std::chrono::steady_clock::time_point now() {
  return std::chrono::steady_clock::now();
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(now() - start).count();
}

}  // namespace weft
