#include "weft/engine/worker_pool.h"

#include <chrono>

#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/base/log.h"

namespace weft {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_while(const std::atomic<int>& value, int old) {
  using Clock = std::chrono::steady_clock;
  // By the clock: a pause takes 40 cycles on one CPU and 140 on another.
  const auto until = Clock::now() + kSpin;
  do {
    for (int pause = 0; pause < 16; ++pause) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_cpu();
    }
  } while (Clock::now() < until);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

WorkerPool::WorkerPool(unsigned threads) : size_(threads) {
  WEFT_CHECK(threads > 0);
  for (unsigned worker = 1; worker < threads; ++worker) {
    threads_.emplace_back([this, worker] { work(worker); });
  }
}

WorkerPool::~WorkerPool() {
  if (threads_.empty()) return;
  call_ = nullptr;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::start(Call call, void* object) {
  call_ = call;
  object_ = object;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  call(object, 0);
  barrier();
}

void WorkerPool::work(unsigned worker) {
  set_thread_name(fmt::format("weft-mm-{}", worker).c_str());
  for (int seen = 0;; ++seen) {
    wait_while(jobs_, seen);
    if (call_ == nullptr) return;
    call_(object_, worker);
    barrier();
  }
}

void WorkerPool::barrier() {
  // Cannot change before all have arrived, this worker included.
  const int passed = barriers_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_while(barriers_, passed);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  barriers_.fetch_add(1, std::memory_order_release);
  barriers_.notify_all();
}

}  // namespace weft
