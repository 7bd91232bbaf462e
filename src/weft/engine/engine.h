#pragma once
// Engine: generates for many sequences at once, each token from one set of weights. It owns one
// thread, the scheduler's, and the worker threads of its matmuls; it knows no socket and no file.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "weft/base/result.h"
#include "weft/engine/request.h"
#include "weft/model/config.h"
#include "weft/tensor/on_update.h"
#include "weft/tensor/weight_set.h"

namespace weft {

struct EngineOptions {
  unsigned threads = 0;                         // 0: one per core
  std::uint64_t max_model_len = 0;              // tokens; 0: the config's max_position_embeddings
  std::uint64_t max_num_seqs = 256;             // in one step; more wait
  std::uint64_t max_num_batched_tokens = 2048;  // in one step, prompts are cut to fit
  std::uint64_t max_queued = 16'384;  // sequences waiting; past it submit() is kOverloaded
  std::uint64_t kv_cache_bytes = 0;   // 0: chosen from the memory there is
  std::uint64_t page_tokens = 16;     // of the KV cache
  // Sequences that begin with the same full pages of tokens, on the same weights and with the same
  // salt, share them.
  bool prefix_caching = true;
  // Every result bit for bit independent of batch, chunking, prefix cache, preemption, threads and
  // neighbours; slower.
  bool deterministic = false;
};

using SequenceId = std::uint64_t;

enum class PauseMode { kAbort, kWait, kKeep };  // vLLM's

// What a change of weights brings with it.
struct WeightChange {
  VersionName version;  // what tokens say from then on
  // Of sequences that have begun, unless their request says otherwise.
  OnUpdate on_update = OnUpdate::kContinue;
  // Called on the engine's thread once no sequence uses the set that was served before any more:
  // before `done`, or with kFinish when the last one on it has ended.
  std::function<void()> released{};
};

// What it did, told on the engine's thread when the next step will be the first on the new set.
struct SwapReport {
  std::shared_ptr<const WeightSet> retired;  // the set that was served before
  // From the end of the last step on the old set to the start of the first on the new one.
  std::uint64_t stall_us = 0;
  std::uint64_t running = 0;  // sequences that were running
};

struct EngineStats {
  std::uint64_t running = 0, waiting = 0;
  double kv_cache_usage = 0;  // 0 to 1
  std::uint64_t prompt_tokens = 0, generation_tokens = 0, preemptions = 0, steps = 0;
  double step_seconds = 0;                                        // sum over all steps
  std::uint64_t prefix_cache_queries = 0, prefix_cache_hits = 0;  // prompt tokens
  std::uint64_t finished_stop = 0, finished_length = 0, finished_abort = 0, finished_error = 0;
  // Sequences that end on the set served before, and what it was called; null when there are none.
  std::uint64_t on_retired = 0;
  std::shared_ptr<const VersionName> retired{};
};

// Thread-safe. Destruction aborts what runs and joins all threads.
class Engine {
 public:
  // `weights` must have the layout of `config`'s expected_tensors (any float dtypes).
  // Errors: kInvalidArgument, kOverloaded (no memory, with the numbers).
  static Result<std::unique_ptr<Engine>> create(const ModelConfig& config, EngineOptions options,
                                                std::shared_ptr<const WeightSet> weights,
                                                VersionName version);
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const EngineOptions& options() const = 0;  // zeros replaced by what was chosen

  // Queues a sequence. Errors: kInvalidArgument naming what is wrong (empty prompt, an id out of
  // range, longer than max_model_len), kOverloaded. After an error the sink is never called.
  virtual Result<SequenceId> submit(SequenceRequest request) = 0;
  // Ends it with FinishReason::kAbort unless it has ended. An unknown id is ignored.
  virtual void cancel(SequenceId id) = 0;

  // vLLM's pause modes: abort ends all that runs or waits, wait lets the running ones end, keep
  // freezes them. New sequences queue. `done` is called on the engine's thread when the pause is
  // complete. With `clear_cache` the prefix cache is empty then, and kept sequences compute their
  // keys and values again when they go on.
  virtual void pause(PauseMode mode, bool clear_cache, std::function<void()> done) = 0;
  virtual void resume() = 0;
  virtual bool is_paused() const = 0;

  // No sequence finds what was computed before. With `recompute_running`, those that run compute
  // their keys and values again.
  virtual void reset_prefix_cache(bool recompute_running) = 0;

  // Between two steps, the next step's weights become `weights`, and every token from then on says
  // the new version, save those of sequences that finish on the old set: while there are some, a
  // step computes both groups. A set on which sequences still end may come back: they go on as part
  // of all others, and its own `released` is called. Requires: `weights` has the layout.
  virtual void swap_weights(std::shared_ptr<const WeightSet> weights, WeightChange change,
                            std::function<void(SwapReport)> done) = 0;
  // Calls `patch` on the engine's thread between two steps: it writes over the set that is served.
  // Where it fails it has put the old values back, nothing else changes, and `done` gets its error.
  // A sequence whose own request says finish is aborted: the values it wants are gone.
  // Errors, through `done`: kUnsupported when `change` says finish.
  virtual void patch_weights(std::function<Result<void>()> patch, WeightChange change,
                             std::function<void(Result<SwapReport>)> done) = 0;
  // Sequences that end on a set served before go on with the one that is served now (recompute).
  virtual void evict_retired() = 0;
  // Changes the name alone, between two steps.
  virtual void rename_version(VersionName version) = 0;
  virtual std::shared_ptr<const VersionName> version() const = 0;

  virtual EngineStats stats() const = 0;
};

}  // namespace weft
