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

void JobThread::post_at(std::chrono::steady_clock::time_point when, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    timed_.emplace(when, std::move(job));
  }
  changed_.notify_one();
}

void JobThread::blocking_stop() {
  std::deque<std::function<void()>> dropped;
  decltype(timed_) too_late;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    too_late.swap(timed_);
    if (rest_ == Rest::kDrop) dropped.swap(jobs_);
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::function<void()> JobThread::blocking_next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    if (!timed_.empty() && timed_.begin()->first <= now) {
      jobs_.push_back(std::move(timed_.begin()->second));
      timed_.erase(timed_.begin());
    }
    if (!jobs_.empty()) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      return job;
    }
    if (stopped_) return nullptr;
    if (timed_.empty()) {
      changed_.wait(lock);
    } else {
      const auto when = timed_.begin()->first;
      changed_.wait_until(lock, when);
    }
  }
}

void JobThread::run() {
  set_thread_name(name_);
  while (const auto job = blocking_next()) {
    try {
      job();
    } catch (const std::exception& error) {  // a library's: who waits for the job gets a 500
      log_error("{}: a job failed: {}", name_, error.what());
    }
  }
}

}  // namespace weft
