#include "weft/transfer/internal/blocking_thread.h"

#include <utility>

#include "weft/base/log.h"

namespace weft::internal {

BlockingThread::BlockingThread(const char* name)
    : thread_([this, name] {
        set_thread_name(name);
        run();
      }) {}

void BlockingThread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void BlockingThread::blocking_stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(jobs_);
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void BlockingThread::run() {
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
      if (stopped_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace weft::internal
