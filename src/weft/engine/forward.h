#pragma once
// The forward pass of a Llama-like model over the tokens of many sequences at once.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/engine/aligned_floats.h"
#include "weft/engine/kv_cache.h"
#include "weft/engine/model_weights.h"
#include "weft/engine/rope.h"
#include "weft/engine/worker_pool.h"
#include "weft/kernels/matmul.h"
#include "weft/model/config.h"

namespace weft {

// What one step computes: tokens of many sequences, flattened. Kept from step to step for its
// memory.
struct Batch {
  struct Token {
    std::uint32_t id = 0;
    std::uint64_t position = 0;            // in its sequence
    std::span<const std::uint32_t> pages;  // of its sequence, reserved up to this position
  };
  std::vector<Token> tokens;
  std::vector<std::uint32_t> logit_rows;  // tokens after which logits are wanted, by index

  void clear() {
    tokens.clear();
    logit_rows.clear();
  }
};

// Receives rows of logits. Called from all workers side by side, on different rows.
class LogitsConsumer {
 public:
  virtual ~LogitsConsumer() = default;
  // `row` is an index into batch.logit_rows; logits are [vocab], valid during the call.
  virtual void on_logits(unsigned worker, std::size_t row, std::span<const float> logits) = 0;
};

// Owns the activations of a step. One thread calls run(), all workers of the pool compute. Nothing
// allocates.
class Forward {
 public:
  // `config`, `cache` and `pool` must outlive it. `max_tokens` in one batch.
  Forward(const ModelConfig& config, kernels::Summation summation, std::size_t max_tokens,
          const KvCache& cache, WorkerPool& pool);

  // Computes the keys and values of all tokens into the cache, and the logits that are wanted.
  // Requires: tokens before a token's position are in the cache or in the batch.
  void run(const ModelWeights& weights, const Batch& batch, LogitsConsumer& consumer);

 private:
  // One linear layer's output: column j of row r goes to out[r * stride + j].
  struct Product {
    const LinearWeights& linear;
    float* out;
    std::size_t stride;
  };
  // A worker's scratch memory for matmuls.
  struct alignas(64) Scratch {
    float floats[kernels::kMatmulScratchFloats];
  };

  // Tokens of one sequence that follow one another in the batch.
  struct Run {
    std::uint32_t first = 0;
    std::uint32_t tokens = 0;
  };

  void make_runs();
  void work(unsigned worker);
  void barrier() {
    if (workers_ > 1) pool_.barrier();
  }
  void attend(unsigned worker, std::size_t layer);
  void feed_forward(unsigned worker, std::size_t layer);
  void compute_logits(unsigned worker);

  void embed(Range rows);
  void norm_rows(Range rows, const kernels::Weights& weight);
  void add_projected(Range rows);
  void rotate_and_store(Range rows, std::size_t layer);
  void attend_rows(unsigned worker, std::size_t layer);

  // products = input [rows, k] times each weight. All workers call it, having written their
  // rows_of() of input; after it every product is complete.
  void project(unsigned worker, const float* input, std::size_t rows, std::size_t k,
               std::span<const Product> products);
  // Columns [begin, end) of all products side by side.
  void columns(unsigned worker, std::size_t rows, std::size_t k, std::span<const Product> products,
               Range range);
  // The rows that a worker has in every phase that goes by rows.
  Range rows_of(unsigned worker, std::size_t rows) const {
    return part_of(rows, 1, worker, workers_);
  }
  std::span<float> row(const AlignedFloats& floats, std::size_t row, std::size_t width) const {
    return {floats.get() + row * width, width};
  }

  const ModelConfig& config_;
  const kernels::Summation summation_;
  const KvCache& cache_;
  WorkerPool& pool_;
  const Rope rope_;
  const std::size_t q_size_;       // heads * head_dim
  const std::size_t kv_size_;      // kv_heads * head_dim
  const std::size_t token_work_;   // multiplications that a token costs, logits aside
  const std::size_t logits_rows_;  // at most so many at once

  // [tokens, ...] of the step.
  AlignedFloats hidden_;     // [tokens, hidden]: the residual stream
  AlignedFloats normed_;     // [tokens, hidden]
  AlignedFloats projected_;  // [tokens, hidden]: what attention or feed-forward adds
  AlignedFloats q_;          // [tokens, q_size]; then what attention gives
  AlignedFloats k_, v_;      // [tokens, kv_size]
  AlignedFloats gate_, up_;  // [tokens, intermediate]
  AlignedFloats cos_, sin_;  // [tokens, head_dim / 2]
  AlignedFloats packed_;     // the input of a product, as kernels want it
  AlignedFloats logits_;     // [logits_rows, vocab]
  std::size_t packed_floats_ = 0;
  std::vector<Scratch> scratch_;  // [workers]

  // Of the step being computed.
  std::vector<Run> runs_;
  SharedSteps steps_;
  unsigned workers_ = 1;  // how many take part
  const ModelWeights* weights_ = nullptr;
  const Batch* batch_ = nullptr;
  LogitsConsumer* consumer_ = nullptr;
};

}  // namespace weft
