#pragma once
// BlockingThread: one named thread that does what may block, one job after the other. Thread-safe.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace weft::internal {

class BlockingThread {
 public:
  // `name`: at most 15 bytes, as `top -H` shows it; must outlive this.
  explicit BlockingThread(const char* name);
  ~BlockingThread() { blocking_stop(); }

  // Queues a job. After a stop it is dropped.
  void post(std::function<void()> job);
  // Lets the job that runs end, drops the rest. Not from a job.
  void blocking_stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace weft::internal
