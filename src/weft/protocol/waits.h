#pragma once
// How long the sender and the puller wait between tries.

#include <algorithm>
#include <chrono>

namespace weft {

// A Retry-After over this is cut to it.
inline constexpr std::chrono::milliseconds kLongestWish{60'000};

// `first` before the first try, doubled with each, up to 5 s. Requires: tries > 0.
inline std::chrono::milliseconds wait_after(unsigned tries, std::chrono::milliseconds first) {
  constexpr std::chrono::milliseconds kLongestWait{5'000};
  return std::min<std::chrono::milliseconds>(first * (1 << std::min(tries - 1, 10u)), kLongestWait);
}

}  // namespace weft
