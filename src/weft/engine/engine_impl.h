#pragma once
// EngineImpl: the engine's state and its thread. engine.cc has the calls from outside and the loop,
// step.cc what one step does, weight_changes.cc what happens between two.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/guarded.h"
#include "weft/engine/cache_size.h"
#include "weft/engine/engine.h"
#include "weft/engine/forward.h"
#include "weft/engine/generation.h"
#include "weft/engine/sampler.h"
#include "weft/engine/scheduler.h"

namespace weft {

// One row of logits and what it is for.
struct LogitsUse {
  Generation* generation = nullptr;
  std::uint64_t position = 0;  // of the token after which the logits come
  bool samples = false;        // the next token; else the prompt's next token is scored
  // Written by a worker:
  ScoredToken scored;
  std::optional<Error> error;
};

class EngineImpl final : public Engine, private LogitsConsumer {
 public:
  EngineImpl(const ModelConfig& config, const EngineOptions& options, const CacheSize& size,
             KvCache cache, ModelWeights weights, VersionName version)
      : config_(config),
        options_(options),
        pages_(static_cast<std::uint32_t>(size.pages)),
        cache_(std::move(cache)),
        scheduler_({options.max_num_seqs, options.max_num_batched_tokens, options.page_tokens,
                    options.prefix_caching},
                   pages_),
        pool_(options.threads),
        forward_(config_,
                 options.deterministic ? kernels::Summation::kExact : kernels::Summation::kFast,
                 options.max_num_batched_tokens, cache_, pool_),
        samplers_(options.threads, Sampler(config.vocab_size)),
        current_(std::make_shared<RunningSet>(
            std::move(weights), std::make_shared<const VersionName>(std::move(version)))),
        version_(current_->version),
        thread_([this] { run(); }) {}

  ~EngineImpl() override {
    post([this] { stopping_ = true; });
    thread_.join();
  }

  const ModelConfig& config() const override { return config_; }
  const EngineOptions& options() const override { return options_; }

  Result<SequenceId> submit(SequenceRequest request) override;
  void cancel(SequenceId id) override {
    post([this, id] {
      const auto at = generations_.find(id);
      if (at != generations_.end()) finish(*at->second, {.reason = FinishReason::kAbort});
    });
  }

  void pause(PauseMode mode, bool clear_cache, std::function<void()> done) override {
    post(
        [this, mode, clear_cache, done = std::move(done)] {
          pause_mode_ = mode;
          if (mode == PauseMode::kAbort) abort_all();
          pauses_.push_back({mode, clear_cache, done});
        },
        true);
  }
  void resume() override {
    post(
        [this] {
          pause_mode_.reset();
          complete_pauses();
        },
        false);
  }
  void reset_prefix_cache(bool recompute_running) override {
    post([this, recompute_running] { clear_cache(recompute_running); });
  }
  bool is_paused() const override { return paused_.load(std::memory_order_relaxed); }

  void swap_weights(std::shared_ptr<const WeightSet> weights, WeightChange change,
                    std::function<void(SwapReport)> done) override;
  void patch_weights(std::function<Result<void>()> patch, WeightChange change,
                     std::function<void(Result<SwapReport>)> done) override;
  void evict_retired() override {
    post([this] {
      for (const auto& [id, generation] : generations_) {
        if (generation->set && generation->set != current_) recompute(*generation);
      }
    });
  }
  void rename_version(VersionName version) override {
    post([this, name = std::make_shared<const VersionName>(std::move(version))] {
      current_->version = name;
      version_.with([&](auto& current) { current = name; });
    });
  }
  std::shared_ptr<const VersionName> version() const override {
    return version_.with([](const auto& current) { return current; });
  }
  EngineStats stats() const override {
    return stats_.with([](const EngineStats& current) { return current; });
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Command = std::function<void()>;
  struct Pause {
    PauseMode mode = PauseMode::kAbort;
    bool clear_cache = false;
    std::function<void()> done;  // may be empty
  };
  // A change of weights that has happened and is not told yet.
  struct Change {
    std::shared_ptr<RunningSet> old;
    std::function<void(SwapReport)> done;
  };

  // Runs `command` on the engine's thread, between two steps, in the order of the calls. `paused`
  // is what is_paused() says from now on.
  void post(Command command, std::optional<bool> paused = std::nullopt) {
    {
      const std::lock_guard lock(inbox_mutex_);
      inbox_.push_back(std::move(command));
      if (paused) paused_.store(*paused, std::memory_order_relaxed);
    }
    inbox_filled_.notify_one();
  }

  // Everything below runs on the engine's thread, but for on_logits.
  void run();
  void run_commands(bool wait);
  void change_weights(ModelWeights weights, WeightChange change,
                      std::function<void(SwapReport)> done);
  // What a sequence that ran on the set served before does now.
  void update(Generation& generation, OnUpdate on_update);
  void continue_on_current(Generation& generation);
  void recompute(Generation& generation);
  void report_changes();
  void step(std::span<const Slice> slices);
  void start(std::span<const Slice> slices);
  void compute(std::span<const Slice> slices, const ModelWeights& weights);
  void make_batch(std::span<const Slice> slices);
  void on_logits(unsigned worker, std::size_t row, std::span<const float> logits) override;
  void hand_out(const Slice& slice, std::span<LogitsUse> uses);
  std::optional<FinishEvent> try_end(const Generation& generation, std::uint32_t token) const;
  void finish(Generation& generation, FinishEvent event);
  std::uint64_t& finished_counter(FinishReason reason);
  // Whether it was in the queue of those never started until now.
  bool leave_queue(Generation& generation);
  void abort_all();
  void complete_pauses();
  void clear_cache(bool recompute_running);
  void publish_stats();
  Scheduler::Admission admission() const;

  const ModelConfig config_;
  const EngineOptions options_;
  PagePool pages_;
  KvCache cache_;
  Scheduler scheduler_;
  WorkerPool pool_;
  Forward forward_;
  std::vector<Sampler> samplers_;        // [workers]
  std::shared_ptr<RunningSet> current_;  // what is served
  std::weak_ptr<RunningSet> retired_;    // what was served before, while sequences end on it
  std::vector<Change> changes_;          // since the last step
  std::map<SequenceId, std::shared_ptr<Generation>> generations_;  // by arrival
  std::optional<PauseMode> pause_mode_;
  std::vector<Pause> pauses_;  // not complete yet
  bool stopping_ = false;
  Clock::time_point step_end_;     // of the last step, or when the thread last woke up
  Batch batch_;                    // of the step in progress
  std::vector<Slice> slices_;      // of the step in progress, by the set they run on
  std::vector<LogitsUse> uses_;    // of all of them
  std::size_t first_use_ = 0;      // of the batch in progress
  std::vector<Command> commands_;  // taken from the inbox
  EngineStats counters_;

  // Shared with callers.
  Guarded<std::shared_ptr<const VersionName>> version_;
  Guarded<EngineStats> stats_;
  std::atomic<SequenceId> last_id_ = 0;    // only has to be unique
  std::atomic<std::uint64_t> queued_ = 0;  // never started; a limit, so relaxed will do
  std::atomic<bool> paused_ = false;       // what callers asked for last
  std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  std::vector<Command> inbox_;  // guarded by inbox_mutex_

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace weft
