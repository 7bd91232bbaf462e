#include "weft/serving/render_thread.h"

#include <exception>
#include <utility>

#include "weft/base/log.h"

namespace weft {

RenderThread::RenderThread() : thread_([this] { run(); }) {}

void RenderThread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    jobs_.push_back(std::move(job));
  }
  news_.notify_one();
}

void RenderThread::blocking_stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  news_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RenderThread::run() {
  set_thread_name("weft-render");
  for (;;) {
    std::vector<std::function<void()>> jobs;
    {
      std::unique_lock lock(mutex_);
      news_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      jobs.swap(jobs_);
    }
    for (auto& job : jobs) {
      try {
        job();
      } catch (const std::exception&
                   error) {  // a library's; its request ends with a 500 when it is let go
        log_error("an answer was lost: {}", error.what());
      }
      job = nullptr;  // what it holds is not kept alive by the jobs behind it
    }
  }
}

}  // namespace weft
