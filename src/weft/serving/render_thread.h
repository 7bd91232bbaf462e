#pragma once
// RenderThread: the thread `weft-render`, which turns what the engine says into text and JSON, so
// that neither the engine nor an I/O thread spends its time on that. Jobs run in the order in which
// they were posted.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

// Thread-safe.
class RenderThread {
 public:
  RenderThread();
  ~RenderThread() { blocking_stop(); }

  // After the stop, jobs are dropped.
  void post(std::function<void()> job);
  // Runs what was posted, then ends. May be called again. Blocks.
  void blocking_stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::function<void()>> jobs_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace weft
