#pragma once
// Policy: the model that is trained, a Llama, Qwen2 or Qwen3 transformer on libtorch with the names
// and shapes of the engine's. libtorch stays in policy.cc.
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
#include <vector>

#include "weft/base/result.h"
#include "weft/model/config.h"
#include "weft/tensor/weight_set.h"
#include "weft/trainer/run_state.h"

namespace weft {

// A prompt and the answer that is scored after it. Neither is empty.
struct TokenSequence {
  std::vector<std::uint32_t> prompt;
  std::vector<std::uint32_t> answer;
};

// Of the answers' tokens, sequence after sequence: [answer tokens of all sequences].
struct TokenScores {
  std::vector<float> logprobs;  // natural log of softmax(logits) at temperature 1
  std::vector<bool> greedy;     // whether the token is the likeliest one
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
  // Random weights, a function of `seed`. `threads` is libtorch's number, for the whole process.
  // Errors: kUnsupported for a config key that changes the maths and is not trained here.
  static Result<std::unique_ptr<Policy>> create(const ModelConfig& config, std::uint64_t seed,
                                                unsigned threads);
  virtual ~Policy() = default;

  virtual TokenScores score(std::span<const TokenSequence> sequences) = 0;

  // One gradient: log-probabilities as score() gives them, then backward() with the loss's
  // derivative by each of them. Several pairs before a step() add up.
  virtual std::vector<float> forward(std::span<const TokenSequence> sequences) = 0;
  // Requires: the last call was forward(), `gradient` is as long as its result.
  virtual void backward(std::span<const float> gradient) = 0;

  // Starts an optimizer afresh: no moments, no gradients.
  virtual void reset_optimizer(const AdamWOptions& options) = 0;
  // One update from the gradients, which are cleared. Returns their norm before clipping; if that
  // is not finite, nothing was changed.
  virtual double step(double learning_rate) = 0;
  // The first tensor whose gradient was not finite in the last step(); "" if all were.
  virtual const std::string& non_finite_tensor() const = 0;

  // Masters and optimizer, after which restore() goes on bit for bit. Gradients are not in it.
  virtual std::vector<StateTensor> state() const = 0;
  // Errors: kCorrupt naming the tensor that is not there, or is of another shape.
  virtual Result<void> restore(std::span<const StateTensor> state) = 0;

  // The rounded weights, as [the layout's] bf16 tensors. Requires: `out` has the layout of
  // expected_tensors(config) in BF16.
  virtual void write_weights(WeightSet& out) const = 0;
};

}  // namespace weft
