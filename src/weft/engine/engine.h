#pragma once
// Engine: generates for many sequences at once, from one set of weights at a time. It owns one
// thread, the scheduler's, and the worker threads of its matmuls; it knows no socket and no file.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "weft/base/result.h"
#include "weft/engine/request.h"
#include "weft/model/config.h"
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
  // Every result bit for bit independent of batch, chunking, preemption, threads and neighbours;
  // slower.
  bool deterministic = false;
};

using SequenceId = std::uint64_t;

enum class PauseMode { kAbort, kWait, kKeep };  // vLLM's

// What a change of weights did, told on the engine's thread after the first instant at which no
// step can see the old set any more.
struct SwapReport {
  std::shared_ptr<const WeightSet> retired;  // the set that was served before
  std::uint64_t stall_us =
      0;  // from the end of the last step on the old set to the new one being in place
  std::uint64_t running = 0;  // sequences that were running
};

struct EngineStats {
  std::uint64_t running = 0, waiting = 0;
  double kv_cache_usage = 0;  // 0 to 1
  std::uint64_t prompt_tokens = 0, generation_tokens = 0, preemptions = 0, steps = 0;
  double step_seconds = 0;  // sum over all steps
  std::uint64_t finished_stop = 0, finished_length = 0, finished_abort = 0, finished_error = 0;
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
  // complete. With `clear_cache`, kept sequences compute their keys and values again when they go
  // on.
  virtual void pause(PauseMode mode, bool clear_cache, std::function<void()> done) = 0;
  virtual void resume() = 0;
  virtual bool is_paused() const = 0;

  // Between two steps, the next step's weights become `weights`, and every token from then on says
  // `version`. Running sequences go on with the keys and values they have. `done` runs on the
  // engine's thread.
  virtual void swap_weights(std::shared_ptr<const WeightSet> weights, VersionName version,
                            std::function<void(SwapReport)> done) = 0;
  // Changes the name alone, between two steps.
  virtual void rename_version(VersionName version) = 0;
  virtual std::shared_ptr<const VersionName> version() const = 0;

  virtual EngineStats stats() const = 0;
};

}  // namespace weft
