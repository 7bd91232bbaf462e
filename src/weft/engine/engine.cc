#include "weft/engine/engine.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/engine/engine_impl.h"

namespace weft {

Result<SequenceId> EngineImpl::submit(SequenceRequest request) {
  const SequenceId id = last_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  WEFT_TRY(auto generation,
           make_generation(id, std::move(request), config_, options_.max_model_len));
  if (queued_.fetch_add(1, std::memory_order_relaxed) >= options_.max_queued) {
    queued_.fetch_sub(1, std::memory_order_relaxed);
    return Error(ErrorCode::kOverloaded,
                 fmt::format("{} sequences are waiting already", options_.max_queued));
  }
  post([this, generation = std::move(generation)] {
    generations_.emplace(generation->id, generation);
    scheduler_.add(*generation);
  });
  return id;
}

// ---- The engine's thread ----

void EngineImpl::run() {
  set_thread_name("weft-eng");
  bool idle = true;
  while (true) {
    run_commands(idle);
    publish_stats();
    if (stopping_) break;
    if (pause_mode_ && !(pause_mode_ == PauseMode::kWait && scheduler_.any_started())) {
      complete_pauses();
    }
    const std::span<const Slice> slices = scheduler_.schedule(admission());
    report_changes();
    idle = slices.empty();  // nothing changes until a command comes
    if (!idle) step(slices);
  }
  abort_all();
  report_changes();
  complete_pauses();
}

// All that has come in; waits for something first if `wait`.
void EngineImpl::run_commands(bool wait) {
  {
    std::unique_lock lock(inbox_mutex_);
    if (wait && inbox_.empty()) {
      inbox_filled_.wait(lock, [this] { return !inbox_.empty(); });
      step_end_ = Clock::now();
    }
    std::swap(commands_, inbox_);
  }
  for (const Command& command : commands_) command();
  commands_.clear();
}

Scheduler::Admission EngineImpl::admission() const {
  if (!pause_mode_) return Scheduler::Admission::kAll;
  return pause_mode_ == PauseMode::kWait ? Scheduler::Admission::kStarted
                                         : Scheduler::Admission::kNone;
}

void EngineImpl::finish(Generation& generation, FinishEvent event) {
  leave_queue(generation);
  event.cached_tokens = generation.cached;
  scheduler_.remove(generation);
  ++finished_counter(event.reason);
  const auto ended = generations_.extract(generation.id);
  generation.set.reset();
  ended.mapped()->sink->on_finish(std::move(event));
}

std::uint64_t& EngineImpl::finished_counter(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return counters_.finished_stop;
    case FinishReason::kLength:
      return counters_.finished_length;
    case FinishReason::kAbort:
      return counters_.finished_abort;
    case FinishReason::kError:
      break;
  }
  return counters_.finished_error;
}

bool EngineImpl::leave_queue(Generation& generation) {
  if (std::exchange(generation.left_queue, true)) return false;
  queued_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void EngineImpl::abort_all() {
  while (!generations_.empty()) {
    finish(*generations_.begin()->second, {.reason = FinishReason::kAbort});
  }
}

void EngineImpl::complete_pauses() {
  for (const Pause& pause : std::exchange(pauses_, {})) {
    if (pause.clear_cache) clear_cache(pause.mode == PauseMode::kKeep);
    if (pause.done) pause.done();
  }
}

void EngineImpl::clear_cache(bool recompute_running) {
  scheduler_.clear_cache();
  if (recompute_running) scheduler_.drop_computed();
}

void EngineImpl::publish_stats() {
  counters_.running = scheduler_.running();
  counters_.waiting = scheduler_.waiting();
  counters_.kv_cache_usage =
      1.0 - static_cast<double>(pages_.free_pages()) / static_cast<double>(pages_.total_pages());
  counters_.preemptions = scheduler_.preemptions();
  counters_.prefix_cache_queries = scheduler_.cache_stats().queries;
  counters_.prefix_cache_hits = scheduler_.cache_stats().hits;
  const auto retired = retired_.lock();
  counters_.on_retired = 0;
  if (retired) {
    counters_.on_retired = static_cast<std::uint64_t>(std::ranges::count_if(
        generations_, [&](const auto& entry) { return entry.second->set == retired; }));
  }
  counters_.retired = counters_.on_retired > 0 ? retired->version : nullptr;
  stats_.with([&](EngineStats& stats) { stats = counters_; });
}

Result<std::unique_ptr<Engine>> Engine::create(const ModelConfig& config, EngineOptions options,
                                               std::shared_ptr<const WeightSet> weights,
                                               VersionName version) {
  WEFT_TRY(ModelWeights model, ModelWeights::bind(config, std::move(weights)));
  WEFT_TRY(const CacheSize size, choose_sizes(config, options));
  WEFT_TRY(KvCache cache, KvCache::create(size.layout, config.num_layers, size.pages));
  try {
    return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(
        config, options, size, std::move(cache), std::move(model), std::move(version)));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("no memory for steps of {} tokens", options.max_num_batched_tokens));
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("cannot start {} threads: {}", options.threads, error.what()));
  }
}

}  // namespace weft
