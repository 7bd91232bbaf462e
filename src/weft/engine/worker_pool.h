#pragma once
// WorkerPool: a few threads that do one job together, in step with each other.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

namespace weft {

// The calling thread is worker 0, the others are threads called weft-mm-N. run() from one thread at
// a time.
//
// Waits spin for 100 us, then sleep: the trainer shares these cores, and pure spinning made a step
// of 0.3 ms take 1.2 ms beside it, this way 0.72 (measured with OpenMP spinning too).
class WorkerPool {
 public:
  // Starts threads - 1 threads. Requires: threads > 0.
  explicit WorkerPool(unsigned threads);
  ~WorkerPool();

  unsigned size() const { return size_; }

  // Calls job(worker) once on every worker and returns when all are done. No allocation.
  template <typename Job>
  void run(Job& job) {
    start([](void* object, unsigned worker) { (*static_cast<Job*>(object))(worker); }, &job);
  }
  // Inside a job: waits until every worker of it has come here. What each did before is visible to
  // all after.
  void barrier();

 private:
  using Call = void (*)(void* object, unsigned worker);

  void start(Call call, void* object);
  void work(unsigned worker);

  const unsigned size_;
  // Written by run() before jobs_ changes, read by workers after they see it change.
  Call call_ = nullptr;
  void* object_ = nullptr;
  // int: what a futex waits on without a detour. Each release pairs with an acquire of the waiting
  // side.
  std::atomic<int> jobs_ = 0;          // how many jobs were begun
  std::atomic<unsigned> arrived_ = 0;  // at the barrier in progress
  std::atomic<int> barriers_ = 0;      // how many were passed
  std::vector<std::thread> threads_;
};

// Which part of [0, total) a worker takes: parts begin at multiples of `step` and differ by one
// step at most.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};
inline Range part_of(std::size_t total, std::size_t step, unsigned worker, unsigned workers) {
  const std::size_t steps = (total + step - 1) / step;
  return {std::min(total, steps * worker / workers * step),
          std::min(total, steps * (worker + 1) / workers * step)};
}

// Steps of a job that workers divide as they go: each takes its own in order, then what others have
// left. So one that is slower, because a trainer has its core or memory serves the other first, is
// not waited for.
class SharedSteps {
 public:
  explicit SharedSteps(unsigned workers) : parts_(workers) {}

  // Before a barrier that all pass, none of whom is in for_each(): what this worker has to do.
  void offer(unsigned worker, Range steps) {
    parts_[worker].next.store(steps.begin, std::memory_order_relaxed);
    parts_[worker].end = steps.end;
  }
  // After that barrier: calls f(step) until no step of the first `workers` workers is left. They
  // may not all be done yet.
  template <typename F>
  void for_each(unsigned worker, unsigned workers, F&& f) {
    for (unsigned i = 0; i < workers; ++i) {
      Part& part = parts_[(worker + i) % workers];
      for (;;) {
        const std::size_t step = part.next.fetch_add(1, std::memory_order_relaxed);
        if (step >= part.end) break;
        f(step);
      }
    }
  }

 private:
  struct alignas(64) Part {
    std::atomic<std::size_t> next = 0;
    std::size_t end = 0;
  };
  std::vector<Part> parts_;
};

}  // namespace weft
