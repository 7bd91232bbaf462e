#pragma once
// A call that is made again where it may succeed as it is.

#include <chrono>
#include <thread>

#include "weft/protocol/waits.h"

namespace weft::internal {

// `call` returns a Result, which is this one's: the first that is there or will not pass, or the
// last of 1 + `retries`. Blocks.
template <typename Call>
auto blocking_retry(unsigned retries, std::chrono::milliseconds first_wait, const Call& call)
    -> decltype(call()) {
  for (unsigned tries = 1;; ++tries) {
    auto done = call();
    if (done || tries > retries || !is_passing(done.error().code())) return done;
    std::this_thread::sleep_for(wait_after(tries, first_wait));
  }
}

}  // namespace weft::internal
