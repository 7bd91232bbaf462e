#pragma once
// Policy: the model that is trained, a Llama, Qwen2 or Qwen3 transformer on libtorch with the names
// and shapes of the engine's, and a scalar head on its last hidden state ("score.weight"; no bias,
// zero at first): what PPO calls the value of a state, a reward model its reward. libtorch stays in
// policy.cc.
//
// Its own weights are fp32 masters. What it computes with, always, are the masters rounded to bf16,
// the very values that are published; gradients pass through the rounding as if it were not there
// (straight-through). Rounding alone moves log-probabilities by up to 0.06, so a trainer that
// scored with the masters could not tell the engine's answers under one version from those under
// the next.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/model/config.h"
#include "weft/tensor/weight_set.h"
#include "weft/trainer/batch.h"
#include "weft/trainer/run_state.h"

namespace weft {

// The scalar head's name, [1, hidden_size], as transformers' *ForSequenceClassification has it.
inline constexpr std::string_view kScalarHead = "score.weight";

// Of the answers' tokens, sequence after sequence: [answer tokens of all sequences].
struct TokenScores {
  std::vector<double> logprobs;   // natural log of softmax(logits) at temperature 1
  std::vector<double> entropies;  // of that softmax, nats
  std::vector<double> values;     // the scalar head on what stands before the token
  std::vector<bool> greedy;       // whether the token is the likeliest one
};

// The derivatives of a loss by the same. Empty: by none of them.
struct TokenGradient {
  std::vector<double> logprobs{}, entropies{}, values{};
};

// Source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;   // of matrices, as a share of the learning rate
  double max_grad_norm = 1.0;  // gradients longer than this are scaled down to it
};

// One thread (libtorch runs its own below it).
class Policy {
 public:
  // libtorch's number, for the whole process.
  static void set_threads(unsigned threads);
  // Random weights, a function of `seed`. `threads`: see set_threads().
  // Errors: kUnsupported for a config key that changes the maths and is not trained here.
  static Result<std::unique_ptr<Policy>> create(const ModelConfig& config, std::uint64_t seed,
                                                unsigned threads);
  virtual ~Policy() = default;

  // A policy with the same weights, as they are now, and no optimizer until reset_optimizer(): a
  // reference that stays, or the trunk of a reward model.
  virtual std::unique_ptr<Policy> clone() const = 0;

  virtual TokenScores score(std::span<const TokenSequence> sequences) = 0;
  // The scalar head after each sequence's last token: [sequences].
  virtual std::vector<double> judge(std::span<const TokenSequence> sequences) = 0;

  // One gradient: what score() gives, then backward() with the loss's derivatives. Several pairs
  // before a step() add up. Sequences share rows of `row_tokens` if that is not 0 (batch.h).
  virtual TokenScores forward(std::span<const TokenSequence> sequences,
                              std::size_t row_tokens = 0) = 0;
  // Requires: the last call was forward(), each part is empty or as long as the scores.
  virtual void backward(const TokenGradient& gradient) = 0;
  // The same of judge().
  virtual std::vector<double> forward_judgement(std::span<const TokenSequence> sequences) = 0;
  virtual void backward_judgement(std::span<const double> gradient) = 0;

  // Starts an optimizer afresh: no moments, no gradients.
  virtual void reset_optimizer(const AdamWOptions& options) = 0;
  // One update from the gradients, which are cleared. Returns their norm before clipping. If that
  // is not finite, nothing was changed; NaN, too, where weights came out of it that are not finite.
  virtual double step(double learning_rate) = 0;
  // What was not finite in the last step(), first: "the gradient of TENSOR", or "TENSOR"; "" if all
  // was.
  virtual const std::string& non_finite() const = 0;

  // Masters and optimizer, after which restore() goes on bit for bit. Gradients are not in it.
  virtual std::vector<StateTensor> state() const = 0;
  // Errors: kCorrupt naming the tensor that is not there, or is of another shape.
  virtual Result<void> restore(std::span<const StateTensor> state) = 0;

  // The rounded weights that `out` has a place for. Requires: `out` is BF16, with the names and
  // shapes of expected_tensors(config), and of the scalar head or not.
  virtual void write_weights(WeightSet& out) const = 0;
  // The same the other way; what `weights` does not have stays as it is.
  virtual void read_weights(const WeightSet& weights) = 0;
};

}  // namespace weft
