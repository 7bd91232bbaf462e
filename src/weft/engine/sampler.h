#pragma once
// From a row of logits to the next token and its log-probability.

#include <cstdint>
#include <span>
#include <vector>

#include "weft/base/result.h"
#include "weft/engine/request.h"

namespace weft {

// What the choice of one token depends on, besides the logits. Borrowed for the call.
struct SamplingContext {
  const SamplingParams& params;
  std::uint64_t seed;
  std::span<const std::uint32_t> tokens;  // the prompt, then what was generated
  std::uint64_t prompt_tokens;
  std::span<const std::uint32_t> end_ids;  // the model's end tokens

  std::uint64_t generated() const { return tokens.size() - prompt_tokens; }
};

// The uniform number in [0, 1) that the k-th token of a sequence with this seed is drawn with. It
// depends on nothing else, so neither does the token. Source: SplitMix64 (Steele, Lea, Flood 2014),
// whose k-th output is a function of seed and k.
double uniform_of(std::uint64_t seed, std::uint64_t k);

// Scratch memory for rows of one vocabulary. One thread.
class Sampler {
 public:
  explicit Sampler(std::size_t vocab_size);

  // Chooses, in vLLM's order: allowed ids, min_tokens, logit_bias, penalties, then temperature,
  // min_p, top_k, top_p. Greedy takes the lowest id among equals. Log-probabilities are of `logits`
  // as they are. Errors: kInternal when the logits hold NaN or +infinity; kInvalidArgument when no
  // token is left to choose.
  Result<ScoredToken> sample(std::span<const float> logits, const SamplingContext& context);

  // What log-probability and rank `token` has, and the `top` likeliest. Errors: as sample().
  Result<ScoredToken> score(std::span<const float> logits, std::uint32_t token, std::uint32_t top);

 private:
  std::span<const float> adjust(std::span<const float> logits, const SamplingContext& context);
  void penalize(const SamplingContext& context);
  std::uint32_t draw_any(std::span<const float> logits, const SamplingContext& context);
  std::uint32_t draw_filtered(std::span<const float> logits, const SamplingContext& context);
  ScoredToken scored(std::span<const float> logits, double log_sum, std::uint32_t token,
                     std::uint32_t top) const;

  std::vector<float> adjusted_;        // [vocab]
  std::vector<float> weights_;         // [vocab]
  std::vector<std::uint32_t> counts_;  // [vocab], zero between calls
  std::vector<std::uint32_t> order_;   // candidates, at most [vocab]
};

}  // namespace weft
