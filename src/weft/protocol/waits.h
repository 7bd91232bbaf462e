#pragma once
// When the sender and the puller try again, and how long they wait.

#include <algorithm>
#include <chrono>

#include "weft/base/error.h"

namespace weft {

// A Retry-After over this is cut to it.
inline constexpr std::chrono::milliseconds kLongestWish{60'000};

// The call may have been lost, or may succeed as it is.
inline bool is_passing(ErrorCode code) {
  return code == ErrorCode::kDisconnected || code == ErrorCode::kDeadline ||
         code == ErrorCode::kOverloaded;
}

// `first` before the first try, doubled with each, up to 5 s. Requires: tries > 0.
inline std::chrono::milliseconds wait_after(unsigned tries, std::chrono::milliseconds first) {
  constexpr std::chrono::milliseconds kLongestWait{5'000};
  return std::min<std::chrono::milliseconds>(first * (1 << std::min(tries - 1, 10u)), kLongestWait);
}

}  // namespace weft
