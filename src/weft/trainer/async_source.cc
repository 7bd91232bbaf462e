#include "weft/trainer/async_source.h"

#include <algorithm>
#include <utility>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/trainer/experience_measures.h"
#include "weft/trainer/stop_watcher.h"
#include "weft/trainer/stopwatch.h"

namespace weft {

AsynchronousSource::~AsynchronousSource() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// At most max_lag batches are ahead of the one that the trainer waits for: each of them is learned
// from one version later, so none is older than the bound by itself. And none is begun while one
// waits for the trainer: it would only be older when its turn comes.
void AsynchronousSource::generate(std::uint64_t first_step) {
  set_thread_name("weft-sample");
  const std::uint64_t max_lag = run_.config().flow.max_lag;
  for (std::uint64_t made = 0;; ++made) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        const bool waits = !ready_.empty() && ready_.front().at <= now();
        return stopped_ || (made < wanted_ && made <= taken_ + max_lag && !waits);
      });
      if (stopped_) return;
    }
    auto batch = blocking_collect(run_, scorer_, first_step + made);
    const bool failed = !batch;
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back({std::move(batch), now() + hold_back(run_.config())});
    }
    changed_.notify_all();
    if (failed) return;
  }
}

Result<Batch> AsynchronousSource::blocking_take() {
  std::unique_lock lock(mutex_);
  while (ready_.empty() || ready_.front().at > now()) {
    WEFT_TRY_VOID(run_.stop_if_asked());
    auto until = now() + kStopInterval;
    if (!ready_.empty()) until = std::min(until, ready_.front().at);
    changed_.wait_until(lock, until);
  }
  Result<Batch> batch = std::move(ready_.front().batch);
  ready_.pop_front();
  ++taken_;
  changed_.notify_all();
  return batch;
}

Result<Experience> AsynchronousSource::blocking_next(StepMetrics& metrics) {
  const std::uint64_t step = metrics.step;
  const Stopwatch clock;
  if (!thread_.joinable()) {
    wanted_ = run_.config().rl.steps + 1 - step;
    thread_ = std::thread([this, step] { generate(step); });
  }
  std::uint64_t dropped = 0;
  while (true) {
    WEFT_TRY(Batch batch, blocking_take());
    dropped += drop_old(batch.experience, step - 1, run_.config().flow.max_lag);
    if (batch.experience.rollouts.empty()) {
      const std::lock_guard lock(mutex_);
      ++wanted_;
      changed_.notify_all();
      continue;
    }
    metrics = batch.metrics;
    metrics.step = step;
    metrics.dropped_old = dropped;
    metrics.wait_ms = clock.ms();
    measure_experience(batch.experience, step - 1, metrics);
    return std::move(batch.experience);
  }
}

}  // namespace weft
