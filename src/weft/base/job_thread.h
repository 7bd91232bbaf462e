#pragma once
// JobThread: one named thread that runs jobs, in the order in which they were posted. Thread-safe.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
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
  // The same at `when`, or as soon after it as the jobs before allow; dropped by a stop.
  void post_at(std::chrono::steady_clock::time_point when, std::function<void()> job);
  // Lets the job that runs end. May be called again, but not from a job. Blocks.
  void blocking_stop();

 private:
  void run();
  // The next job; empty when it is stopped.
  std::function<void()> blocking_next();

  const char* const name_;
  const Rest rest_;
  std::mutex mutex_;  // of what follows, but for the thread
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::multimap<std::chrono::steady_clock::time_point, std::function<void()>> timed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace weft
