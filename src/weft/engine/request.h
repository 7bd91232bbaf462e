#pragma once
// What the engine is asked and what it answers: token ids in, token ids out.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/tensor/on_update.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// How tokens are chosen. Checked by serving before it gets here; names and meanings are vLLM's.
struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  std::int64_t top_k = 0;  // 0 or -1: all
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::optional<std::uint64_t> seed = {};  // nothing: one is drawn
  std::uint64_t max_tokens = 16;
  std::uint64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::uint32_t> stop_token_ids = {};
  std::vector<std::pair<std::uint32_t, float>> logit_bias = {};
  std::vector<std::uint32_t> allowed_token_ids = {};  // empty: all
  // Nothing: none. k: the sampled token's log-probability, and the k likeliest.
  std::optional<std::uint32_t> logprobs = {};
  // Likewise for every prompt token but the first.
  std::optional<std::uint32_t> prompt_logprobs = {};
};

struct TokenLogprob {
  std::uint32_t token = 0;
  float logprob = 0;       // natural log of softmax(logits), before temperature and filters
  std::uint32_t rank = 0;  // 1: the likeliest
};

// One token and what was asked about it.
struct ScoredToken {
  TokenLogprob chosen;            // logprob and rank are set when logprobs were asked for
  std::vector<TokenLogprob> top;  // the k likeliest, likeliest first
};

enum class FinishReason { kStop, kLength, kAbort, kError };

// Called on the engine's thread, in order, for one sequence. Must not block: hand it on.
struct TokenEvent {
  std::uint32_t token = 0;
  ScoredToken scored;
  std::shared_ptr<const VersionName> version;  // what sampled it
  std::uint64_t cached_tokens = 0;             // as at the end
};
struct FinishEvent {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::uint32_t> stop_token =
      {};                           // the stop_token_ids entry or end token that ended it
  std::optional<Error> error = {};  // with kError
  std::uint64_t cached_tokens = 0;  // prompt tokens whose keys and values were there already
};
class SequenceSink {
 public:
  virtual ~SequenceSink() = default;
  // Once, before the first token, if prompt_logprobs were asked for: one entry for each prompt
  // token, the first without a log-probability.
  virtual void on_prompt(std::vector<ScoredToken> prompt,
                         std::shared_ptr<const VersionName> version) = 0;
  virtual void on_token(TokenEvent event) = 0;
  // Once, last.
  virtual void on_finish(FinishEvent event) = 0;
};

// One sequence. n > 1 is n requests with seeds of their own.
struct SequenceRequest {
  std::vector<std::uint32_t> prompt;  // not empty, every id below the vocabulary's size
  SamplingParams sampling;
  std::shared_ptr<SequenceSink> sink;
  std::string cache_salt;  // keys and values are shared among sequences with the same one only
  std::optional<OnUpdate> on_update{};  // nothing: what the update says
  // The end tokens; nothing: the config's.
  std::optional<std::vector<std::uint32_t>> end_token_ids{};
};

}  // namespace weft
