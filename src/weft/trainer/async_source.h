#pragma once
// AsynchronousSource: the flow in which generation goes on, on a thread of its own, while the
// trainer learns. Answers may come from up to `max_lag` versions before the one that is learned on
// top of, and may span updates; each token says which version it is from.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "weft/base/result.h"
#include "weft/trainer/sampling.h"

namespace weft {

// blocking_next() from one thread.
class AsynchronousSource final : public ExperienceSource {
 public:
  // `run` and `scorer` must outlive it; the scorer is called on the thread of this source alone.
  AsynchronousSource(Run& run, Scorer& scorer) : run_(run), scorer_(scorer) {}
  // Waits for the batch that is being sampled. Blocks.
  ~AsynchronousSource() override;

  Result<Experience> blocking_next(StepMetrics& metrics) override;

 private:
  struct Ready {
    Result<Batch> batch;
    std::chrono::steady_clock::time_point at;  // not before, see fault.hold_back_ms
  };

  // Begins with the batch of `first_step`.
  void generate(std::uint64_t first_step);
  Result<Batch> blocking_take();

  Run& run_;
  Scorer& scorer_;
  std::mutex mutex_;  // of what follows, but for the thread
  std::condition_variable changed_;
  std::deque<Ready> ready_;
  std::uint64_t taken_ = 0;   // batches
  std::uint64_t wanted_ = 0;  // batches in all
  bool stopped_ = false;
  std::thread thread_;  // begins with the first call of blocking_next()
};

}  // namespace weft
