#pragma once
// What waits, in a process that may be asked to stop. The flag is set by a signal handler, which
// may wake nobody, so it is looked at.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <thread>
#include <utility>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/base/result.h"

namespace weft {

// Between looks at it.
inline constexpr std::chrono::milliseconds kStopInterval{50};

// Waits so long. Errors: kCancelled once `stop`, if there is one, is true.
inline Result<void> blocking_pause(std::chrono::milliseconds wait, const std::atomic<bool>* stop) {
  for (const auto end = now() + wait; now() < end;) {
    if (stop != nullptr && stop->load()) return Error(ErrorCode::kCancelled, "interrupted");
    std::this_thread::sleep_for(
        std::min<std::chrono::steady_clock::duration>(kStopInterval, end - now()));
  }
  return {};
}

// Calls `on_stop` once, on a thread of its own, when `stop` becomes true; not after its end.
class StopWatcher {
 public:
  StopWatcher(const std::atomic<bool>& stop, std::function<void()> on_stop)
      : thread_([&stop, on_stop = std::move(on_stop)](const std::stop_token& over) {
          set_thread_name("weft-stop");
          while (!over.stop_requested() && !stop.load()) std::this_thread::sleep_for(kStopInterval);
          if (stop.load()) on_stop();
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace weft
