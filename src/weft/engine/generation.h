#pragma once
// What the engine knows of one sequence, and of the weights that it runs on.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "weft/base/result.h"
#include "weft/engine/engine.h"
#include "weft/engine/model_weights.h"
#include "weft/engine/request.h"
#include "weft/engine/scheduler.h"

namespace weft {

// Weights that are served, or were and still have sequences that end on them. Whoever lets go of
// it last tells so. The engine's thread.
struct RunningSet {
  RunningSet(ModelWeights weights_, std::shared_ptr<const VersionName> version_)
      : weights(std::move(weights_)), version(std::move(version_)) {}
  RunningSet(const RunningSet&) = delete;
  RunningSet& operator=(const RunningSet&) = delete;
  ~RunningSet() {
    weights.set.reset();
    if (released) released();
  }

  ModelWeights weights;
  std::shared_ptr<const VersionName> version;
  std::function<void()> released;  // set when it is no longer served
};

// A request and how far it has come. The base is the scheduler's.
struct Generation : Sequence {
  SequenceId id = 0;
  SamplingParams sampling;
  std::shared_ptr<SequenceSink> sink;
  std::vector<std::uint32_t> end_token_ids;  // empty with ignore_eos
  std::optional<OnUpdate> on_update;
  std::uint64_t seed = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_total_tokens = 0;      // prompt and output
  std::vector<ScoredToken> prompt_scores;  // [prompt_tokens], when they were asked for
  std::uint64_t prompt_rows_scored = 0;    // rows before it are done, whatever was preempted since
  bool prompt_reported = false;
  bool left_queue = false;          // was started, or ended
  std::shared_ptr<RunningSet> set;  // what it runs on; null before it starts and after it ends

  // Has all the tokens it may have.
  bool is_full() const { return tokens.size() >= max_total_tokens; }
  bool wants_prompt_scores() const { return sampling.prompt_logprobs && !prompt_reported; }
};

// Errors: kInvalidArgument naming what is wrong.
Result<std::shared_ptr<Generation>> make_generation(SequenceId id, SequenceRequest request,
                                                    const ModelConfig& config,
                                                    std::uint64_t max_model_len);

}  // namespace weft
