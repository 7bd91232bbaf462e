#include "weft/engine/forward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/check.h"
#include "weft/kernels/attention.h"
#include "weft/kernels/convert.h"
#include "weft/kernels/ops.h"

namespace weft {
namespace {

// Logits of a large vocabulary are computed and used a few rows at a time: 2,048 rows of 151,936
// would be 1.2 GB. Not fewer than make a product efficient.
std::size_t logits_rows_at_once(std::size_t vocab_size, std::size_t max_tokens) {
  constexpr std::size_t kLogitsBytes = 64u << 20;
  constexpr std::size_t kLeastRows = 64;
  const std::size_t fitting = kLogitsBytes / (vocab_size * sizeof(float));
  return std::min(max_tokens, std::max(kLeastRows, fitting));
}

// How many of `total` columns a worker takes at once: so few that none waits long for the last, so
// many that what is fetched ahead of them pays.
std::size_t columns_at_once(std::size_t total, std::size_t k, DType dtype, unsigned workers) {
  constexpr std::size_t kBytes = 256 * 1024;
  constexpr std::size_t kLeastSteps = 4;  // of each worker; a small model has few columns
  const std::size_t fitting = kBytes / (k * dtype_size_bytes(dtype));
  const std::size_t columns = std::min(fitting, total / (kLeastSteps * workers));
  return std::max<std::size_t>(1, columns / kernels::kColumnStep) * kernels::kColumnStep;
}

}  // namespace

Forward::Forward(const ModelConfig& config, kernels::Summation summation, std::size_t max_tokens,
                 const KvCache& cache, WorkerPool& pool)
    : config_(config),
      summation_(summation),
      cache_(cache),
      pool_(pool),
      rope_(config.rope, config.head_dim),
      q_size_(config.num_heads * config.head_dim),
      kv_size_(config.num_kv_heads * config.head_dim),
      token_work_(config.num_layers * config.hidden_size *
                  (2 * q_size_ + 2 * kv_size_ + 3 * config.intermediate_size)),
      logits_rows_(logits_rows_at_once(config.vocab_size, max_tokens)),
      scratch_(pool.size()),
      steps_(pool.size()) {
  hidden_ = make_aligned_floats(max_tokens * config.hidden_size);
  normed_ = make_aligned_floats(max_tokens * config.hidden_size);
  projected_ = make_aligned_floats(max_tokens * config.hidden_size);
  q_ = make_aligned_floats(max_tokens * q_size_);
  k_ = make_aligned_floats(max_tokens * kv_size_);
  v_ = make_aligned_floats(max_tokens * kv_size_);
  gate_ = make_aligned_floats(max_tokens * config.intermediate_size);
  up_ = make_aligned_floats(max_tokens * config.intermediate_size);
  cos_ = make_aligned_floats(max_tokens * config.head_dim / 2);
  sin_ = make_aligned_floats(max_tokens * config.head_dim / 2);
  logits_ = make_aligned_floats(logits_rows_ * config.vocab_size);
  for (const std::size_t k :
       {std::size_t{config.hidden_size}, q_size_, std::size_t{config.intermediate_size}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      packed_floats_ =
          std::max(packed_floats_,
                   kernels::packed_floats(
                       {.rows = max_tokens, .k = k, .dtype = dtype, .summation = summation}));
    }
  }
  packed_ = make_aligned_floats(packed_floats_);
  runs_.reserve(max_tokens);
}

void Forward::run(const ModelWeights& weights, const Batch& batch, LogitsConsumer& consumer) {
  weights_ = &weights;
  batch_ = &batch;
  consumer_ = &consumer;
  make_runs();
  // Less than some 30 us of one core's work: barriers would cost as much, and far more where a
  // trainer has the other cores. The results are the same.
  constexpr std::size_t kLeastSharedWork = 1u << 20;
  workers_ = batch.tokens.size() * token_work_ < kLeastSharedWork ? 1 : pool_.size();
  auto job = [this](unsigned worker) { work(worker); };
  if (workers_ == 1) {
    job(0);
  } else {
    pool_.run(job);
  }
}

void Forward::work(unsigned worker) {
  const Range rows = rows_of(worker, batch_->tokens.size());
  embed(rows);
  for (std::size_t layer = 0; layer < weights_->layers.size(); ++layer) {
    norm_rows(rows, weights_->layers[layer].input_norm);
    attend(worker, layer);
    add_projected(rows);
    norm_rows(rows, weights_->layers[layer].post_attention_norm);
    feed_forward(worker, layer);
    add_projected(rows);
  }
  barrier();  // the rows wanted may be another worker's
  compute_logits(worker);
}

void Forward::attend(unsigned worker, std::size_t layer) {
  const LayerWeights& weights = weights_->layers[layer];
  const std::size_t rows = batch_->tokens.size();
  project(worker, normed_.get(), rows, config_.hidden_size,
          std::array<Product, 3>{{{weights.q, q_.get(), q_size_},
                                  {weights.k, k_.get(), kv_size_},
                                  {weights.v, v_.get(), kv_size_}}});
  rotate_and_store(rows_of(worker, rows), layer);
  steps_.offer(worker, part_of(runs_.size() * config_.num_kv_heads, 1, worker, workers_));
  barrier();
  attend_rows(worker, layer);
  barrier();
  project(worker, q_.get(), rows, q_size_,
          std::array<Product, 1>{{{weights.o, projected_.get(), config_.hidden_size}}});
}

void Forward::feed_forward(unsigned worker, std::size_t layer) {
  const LayerWeights& weights = weights_->layers[layer];
  const std::size_t rows = batch_->tokens.size();
  const std::size_t inner = config_.intermediate_size;
  project(
      worker, normed_.get(), rows, config_.hidden_size,
      std::array<Product, 2>{{{weights.gate, gate_.get(), inner}, {weights.up, up_.get(), inner}}});
  const Range mine = rows_of(worker, rows);
  for (std::size_t r = mine.begin; r < mine.end; ++r) {
    kernels::silu_mul(row(gate_, r, inner), row(up_, r, inner), row(gate_, r, inner));
  }
  project(worker, gate_.get(), rows, inner,
          std::array<Product, 1>{{{weights.down, projected_.get(), config_.hidden_size}}});
}

void Forward::compute_logits(unsigned worker) {
  const std::size_t hidden = config_.hidden_size;
  const std::size_t total = batch_->logit_rows.size();
  for (std::size_t first = 0; first < total; first += logits_rows_) {
    const std::size_t count = std::min(logits_rows_, total - first);
    const Range mine = rows_of(worker, count);
    for (std::size_t r = mine.begin; r < mine.end; ++r) {
      kernels::rms_norm(row(hidden_, batch_->logit_rows[first + r], hidden), weights_->norm,
                        static_cast<float>(config_.rms_norm_eps), row(normed_, r, hidden));
    }
    project(worker, normed_.get(), count, hidden,
            std::array<Product, 1>{{{weights_->lm_head, logits_.get(), config_.vocab_size}}});
    for (std::size_t r = worker; r < count; r += workers_) {
      consumer_->on_logits(worker, first + r, row(logits_, r, config_.vocab_size));
    }
    barrier();
  }
}

void Forward::embed(Range rows) {
  const std::size_t hidden = config_.hidden_size;
  const kernels::Weights& embedding = weights_->embedding;
  const std::size_t row_bytes = hidden * dtype_size_bytes(embedding.dtype);
  const std::size_t half = config_.head_dim / 2;
  for (std::size_t r = rows.begin; r < rows.end; ++r) {
    const Batch::Token& token = batch_->tokens[r];
    kernels::convert_to_f32({embedding.data + token.id * row_bytes, row_bytes}, embedding.dtype,
                            row(hidden_, r, hidden));
    rope_.angles(token.position, row(cos_, r, half), row(sin_, r, half));
  }
}

void Forward::norm_rows(Range rows, const kernels::Weights& weight) {
  const std::size_t hidden = config_.hidden_size;
  for (std::size_t r = rows.begin; r < rows.end; ++r) {
    kernels::rms_norm(row(hidden_, r, hidden), weight, static_cast<float>(config_.rms_norm_eps),
                      row(normed_, r, hidden));
  }
}

void Forward::add_projected(Range rows) {
  const std::size_t hidden = config_.hidden_size;
  for (std::size_t r = rows.begin; r < rows.end; ++r) {
    kernels::add(row(hidden_, r, hidden), row(projected_, r, hidden));
  }
}

void Forward::rotate_and_store(Range rows, std::size_t layer) {
  const LayerWeights& weights = weights_->layers[layer];
  const kernels::KvLayer cache = cache_.layer(layer);
  const std::size_t head_dim = config_.head_dim;
  const auto norm_heads = [&](std::span<float> heads, const kernels::Weights& weight) {
    for (std::size_t at = 0; at < heads.size(); at += head_dim) {
      const auto head = heads.subspan(at, head_dim);
      kernels::rms_norm(head, weight, static_cast<float>(config_.rms_norm_eps), head);
    }
  };
  for (std::size_t r = rows.begin; r < rows.end; ++r) {
    const auto queries = row(q_, r, q_size_);
    const auto keys = row(k_, r, kv_size_);
    if (config_.qk_norm) {
      norm_heads(queries, weights.q_norm);
      norm_heads(keys, weights.k_norm);
    }
    const auto cos = row(cos_, r, head_dim / 2);
    const auto sin = row(sin_, r, head_dim / 2);
    kernels::rope(queries, cos, sin);
    kernels::rope(keys, cos, sin);
    const Batch::Token& token = batch_->tokens[r];
    const std::size_t page_tokens = cache.layout.page_tokens;
    kernels::store_kv(cache, token.pages[token.position / page_tokens],
                      token.position % page_tokens, keys, row(v_, r, kv_size_));
  }
}

// Neighbours of one sequence share what attention reads, so they go together.
void Forward::make_runs() {
  runs_.clear();
  const std::size_t group = config_.num_heads / config_.num_kv_heads;
  const std::size_t most = std::max<std::size_t>(1, kernels::kQueryBlockHeads / group);
  const std::vector<Batch::Token>& tokens = batch_->tokens;
  for (std::uint32_t i = 0; i < tokens.size(); ++i) {
    const bool follows = i > 0 && tokens[i].pages.data() == tokens[i - 1].pages.data() &&
                         tokens[i].position == tokens[i - 1].position + 1;
    if (!follows || runs_.back().tokens == most) runs_.push_back({i, 0});
    ++runs_.back().tokens;
  }
}

// By runs and kv heads.
void Forward::attend_rows(unsigned worker, std::size_t layer) {
  const kernels::KvLayer cache = cache_.layer(layer);
  const std::size_t kv_heads = config_.num_kv_heads;
  const std::size_t group = config_.num_heads / kv_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(config_.head_dim));
  const bool sliding = config_.sliding_window && config_.sliding_layers[layer];
  steps_.for_each(worker, workers_, [&](std::size_t item) {
    const Run& run = runs_[item / kv_heads];
    const std::size_t kv_head = item % kv_heads;
    const Batch::Token& first = batch_->tokens[run.first];
    kernels::attention(
        cache, first.pages, kv_head, scale,
        {.queries = row(q_, run.first, q_size_).data() + kv_head * group * config_.head_dim,
         .tokens = run.tokens,
         .stride = q_size_,
         .group = group,
         .position = first.position,
         .window = sliding ? *config_.sliding_window : 0});
  });
}

void Forward::project(unsigned worker, const float* input, std::size_t rows, std::size_t k,
                      std::span<const Product> products) {
  const Range mine = rows_of(worker, rows);
  while (!products.empty()) {
    // Products whose weights have one dtype share what is packed; nearly always that is all of
    // them.
    const DType dtype = products.front().linear.weight.dtype;
    const auto other = std::ranges::find_if(
        products, [&](const Product& product) { return product.linear.weight.dtype != dtype; });
    const auto same = products.first(static_cast<std::size_t>(other - products.begin()));
    kernels::pack_rows({.rows = rows, .k = k, .dtype = dtype, .summation = summation_},
                       {input, rows * k}, mine.begin, mine.end, {packed_.get(), packed_floats_});
    std::size_t total = 0;
    for (const Product& product : same) total += product.linear.outputs;
    const std::size_t at_once = columns_at_once(total, k, dtype, workers_);
    steps_.offer(worker, part_of((total + at_once - 1) / at_once, 1, worker, workers_));
    barrier();
    steps_.for_each(worker, workers_, [&](std::size_t step) {
      columns(worker, rows, k, same, {step * at_once, std::min(total, (step + 1) * at_once)});
    });
    barrier();
    products = products.subspan(same.size());
  }
}

void Forward::columns(unsigned worker, std::size_t rows, std::size_t k,
                      std::span<const Product> products, Range range) {
  std::size_t first = 0;  // of this product, among all columns
  for (const Product& product : products) {
    const std::size_t n = product.linear.outputs;
    const std::size_t begin = std::clamp(range.begin, first, first + n) - first;
    const std::size_t end = std::clamp(range.end, first, first + n) - first;
    if (begin < end) {
      kernels::matmul({.rows = rows,
                       .n = n,
                       .k = k,
                       .dtype = product.linear.weight.dtype,
                       .summation = summation_},
                      {packed_.get(), packed_floats_}, product.linear.weight.data,
                      product.linear.bias, begin, end, product.out, product.stride,
                      scratch_[worker].floats);
    }
    first += n;
  }
}

}  // namespace weft
