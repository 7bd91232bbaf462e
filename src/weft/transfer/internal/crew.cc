#include "weft/transfer/internal/crew.h"

#include <thread>
#include <vector>

#include <fmt/core.h>

#include "weft/base/log.h"

namespace weft::internal {

void Crew::blocking_run(unsigned threads, const char* name, const Work& work,
                        const std::function<void()>& tick) {
  if (threads == 1 && !tick) {
    std::unique_lock lock(mutex_);
    return work(lock);
  }
  running_ = threads;
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < threads; ++i) {
    pool.emplace_back([this, name, &work, i] {
      set_thread_name(fmt::format("{}-{}", name, i).c_str());
      std::unique_lock lock(mutex_);
      work(lock);
      --running_;
      change();
    });
  }
  std::unique_lock lock(mutex_);
  while (running_ > 0) {
    blocking_wait(lock);
    if (tick) tick();
  }
  lock.unlock();
  for (std::thread& thread : pool) thread.join();
}

void Crew::change() {
  ++changes_;
  changed_.notify_all();
}

void Crew::blocking_wait(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t seen = changes_;
  changed_.wait(lock, [&] { return changes_ != seen; });
}

}  // namespace weft::internal
