#pragma once
// Crew: threads that share one lock, for as long as one call. Thread-compatible.

#include <condition_variable>
#include <functional>
#include <mutex>

namespace weft::internal {

class Crew {
 public:
  using Work = std::function<void(std::unique_lock<std::mutex>&)>;

  // Runs `work` on `threads` threads of its own, named `name`-0 and so on, each with the lock held;
  // `work` gives it up while it does what takes long. Calls `tick`, where given, on this thread and
  // with the lock held, after each change() and at the end; without it this thread is the one where
  // one is enough. Blocks until all have returned.
  void blocking_run(unsigned threads, const char* name, const Work& work,
                    const std::function<void()>& tick = {});

  // For `work`, with the lock held: wakes those that wait.
  void change();
  // For `work`: until the next change().
  void blocking_wait(std::unique_lock<std::mutex>& lock);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  unsigned running_ = 0;
};

}  // namespace weft::internal
