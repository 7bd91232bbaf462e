#include "weft/base/job_thread.h"

#include <exception>
#include <utility>

#include "weft/base/log.h"

namespace weft {

JobThread::JobThread(const char* name, Rest rest)
    : name_(name), rest_(rest), thread_([this] { run(); }) {}

void JobThread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void JobThread::blocking_stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (rest_ == Rest::kDrop) dropped.swap(jobs_);
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void JobThread::run() {
  set_thread_name(name_);
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      job();
    } catch (const std::exception& error) {  // a library's: who waits for the job gets a 500
      log_error("{}: a job failed: {}", name_, error.what());
    }
  }
}

}  // namespace weft
