#pragma once
// JobThread: one named thread that runs jobs, in the order in which they were posted. Thread-safe.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace weft {

class JobThread {
 public:
  // What becomes of the jobs that wait when it is stopped.
  enum class Rest { kRun, kDrop };

  // `name`: at most 15 bytes, as `top -H` shows it; must outlive this.
  JobThread(const char* name, Rest rest);
  ~JobThread() { blocking_stop(); }

  // After a stop, jobs are dropped. What a job throws is logged, and the next one runs.
  void post(std::function<void()> job);
  // Lets the job that runs end. May be called again, but not from a job. Blocks.
  void blocking_stop();

 private:
  void run();

  const char* const name_;
  const Rest rest_;
  std::mutex mutex_;  // of what follows, but for the thread
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace weft
