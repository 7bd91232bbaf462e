#include "weft/trainer/policy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

namespace weft {
namespace {

// The tensors of one layer. Biases and q/k norms are undefined where the model has none.
struct LayerWeights {
  at::Tensor input_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, o, o_bias;
  at::Tensor post_norm, gate, up, down, gate_bias, up_bias, down_bias;
};

std::vector<std::int64_t> sizes_of(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

std::int64_t signed_size(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

// What one forward pass needs of its sequences, padded on the right to the longest: a causal
// model's answers do not depend on what stands behind them.
struct Batch {
  at::Tensor ids;  // [sequences, tokens]; an answer's last token is scored, not fed
  at::Tensor
      places;  // [scored] into the flattened hidden states: where the next token is an answer's
  at::Tensor targets;  // [scored] those tokens
};

Batch make_batch(std::span<const TokenSequence> sequences) {
  std::size_t length = 0;
  for (const TokenSequence& sequence : sequences) {
    length = std::max(length, sequence.prompt.size() + sequence.answer.size() - 1);
  }
  std::vector<std::int64_t> ids, places, targets;
  for (const TokenSequence& sequence : sequences) {
    const std::size_t begin = ids.size();
    ids.insert(ids.end(), sequence.prompt.begin(), sequence.prompt.end());
    ids.insert(ids.end(), sequence.answer.begin(), sequence.answer.end() - 1);
    ids.resize(begin + length, 0);
    for (std::size_t tok = 0; tok < sequence.answer.size(); ++tok) {
      places.push_back(static_cast<std::int64_t>(begin + sequence.prompt.size() + tok - 1));
      targets.push_back(sequence.answer[tok]);
    }
  }
  return {at::tensor(ids).view({static_cast<std::int64_t>(sequences.size()), -1}),
          at::tensor(places), at::tensor(targets)};
}

// Rotates the halves of each head. Source: Su et al., "RoFormer", in the layout of transformers'
// apply_rotary_pos_emb. `x` is [sequences, heads, tokens, head_dim]; `cos`, `sin` [tokens, head_dim
// / 2].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

class TorchPolicy final : public Policy {
 public:
  TorchPolicy(const ModelConfig& config, std::uint64_t seed);

  TokenScores score(std::span<const TokenSequence> sequences) override;
  std::vector<float> forward(std::span<const TokenSequence> sequences) override;
  void backward(std::span<const float> gradient) override;
  void reset_optimizer(const AdamWOptions& options) override;
  double step(double learning_rate) override;
  const std::string& non_finite_tensor() const override { return non_finite_tensor_; }
  std::vector<StateTensor> state() const override;
  Result<void> restore(std::span<const StateTensor> state) override;
  void write_weights(WeightSet& out) const override;

 private:
  // A weight, its master and its optimizer state.
  struct Parameter {
    std::string name;
    at::Tensor master;   // fp32
    at::Tensor rounded;  // the master rounded to bf16, kept as fp32; the leaf that gradients go to
    at::Tensor exp_avg, exp_avg_sq, steps;
  };

  // Calls visit(name, tensor) for all fp32 tensors that make a run go on.
  template <typename Visit>
  void visit_state(Visit&& visit) const;

  at::Tensor weight(const std::string& name) const;
  void bind_layers();
  void round_masters();
  at::Tensor attention(const LayerWeights& layer, const at::Tensor& x) const;
  // [scored, vocabulary]
  at::Tensor log_softmax_at(const Batch& batch) const;

  ModelConfig config_;
  AdamWOptions options_;
  std::vector<Parameter> parameters_;
  at::Tensor embedding_, final_norm_, lm_head_, inverse_frequencies_;
  std::vector<LayerWeights> layers_;
  at::Tensor logprobs_;  // of forward(), with its graph
  std::string non_finite_tensor_;
};

TorchPolicy::TorchPolicy(const ModelConfig& config, std::uint64_t seed) : config_(config) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const TensorSpec& spec : expected_tensors(config)) {
    at::Tensor master;
    if (spec.shape.size() > 1) {
      // 0.7 / sqrt(inputs) keeps activations near unit size through the layers; transformers' own
      // 0.02 for the embedding, which is the tied output too.
      const bool is_embedding = spec.name == "model.embed_tokens.weight";
      const double deviation = 0.7 / std::sqrt(static_cast<double>(spec.shape[1]));
      master = at::normal(0.0, is_embedding ? 0.02 : deviation, sizes_of(spec.shape), generator);
    } else {
      const bool is_bias = spec.name.ends_with(".bias");
      master = at::full(sizes_of(spec.shape), is_bias ? 0.0 : 1.0);
    }
    parameters_.push_back({spec.name, master, at::empty_like(master), {}, {}, {}});
  }
  round_masters();
  for (Parameter& parameter : parameters_) parameter.rounded.requires_grad_(true);
  bind_layers();
  reset_optimizer(options_);
}

at::Tensor TorchPolicy::weight(const std::string& name) const {
  const auto at = std::ranges::find(parameters_, name, &Parameter::name);
  return at == parameters_.end() ? at::Tensor() : at->rounded;
}

void TorchPolicy::bind_layers() {
  embedding_ = weight("model.embed_tokens.weight");
  final_norm_ = weight("model.norm.weight");
  lm_head_ = config_.tie_word_embeddings ? embedding_ : weight("lm_head.weight");
  const auto half = signed_size(config_.head_dim / 2);
  inverse_frequencies_ =
      1.0 / at::pow(config_.rope.theta, at::arange(half, at::kFloat) / static_cast<float>(half));
  for (std::uint64_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const std::string attn = at + "self_attn.", mlp = at + "mlp.";
    layers_.push_back({.input_norm = weight(at + "input_layernorm.weight"),
                       .q = weight(attn + "q_proj.weight"),
                       .k = weight(attn + "k_proj.weight"),
                       .v = weight(attn + "v_proj.weight"),
                       .q_bias = weight(attn + "q_proj.bias"),
                       .k_bias = weight(attn + "k_proj.bias"),
                       .v_bias = weight(attn + "v_proj.bias"),
                       .q_norm = weight(attn + "q_norm.weight"),
                       .k_norm = weight(attn + "k_norm.weight"),
                       .o = weight(attn + "o_proj.weight"),
                       .o_bias = weight(attn + "o_proj.bias"),
                       .post_norm = weight(at + "post_attention_layernorm.weight"),
                       .gate = weight(mlp + "gate_proj.weight"),
                       .up = weight(mlp + "up_proj.weight"),
                       .down = weight(mlp + "down_proj.weight"),
                       .gate_bias = weight(mlp + "gate_proj.bias"),
                       .up_bias = weight(mlp + "up_proj.bias"),
                       .down_bias = weight(mlp + "down_proj.bias")});
  }
}

void TorchPolicy::round_masters() {
  const c10::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    parameter.rounded.copy_(parameter.master.to(at::kBFloat16));
  }
}

at::Tensor TorchPolicy::attention(const LayerWeights& layer, const at::Tensor& x) const {
  const std::int64_t sequences = x.size(0), tokens = x.size(1);
  const auto heads_of = [&](const at::Tensor& projected) {
    return projected.view({sequences, tokens, -1, signed_size(config_.head_dim)}).transpose(1, 2);
  };
  at::Tensor q = heads_of(at::linear(x, layer.q, layer.q_bias));
  at::Tensor k = heads_of(at::linear(x, layer.k, layer.k_bias));
  const at::Tensor v = heads_of(at::linear(x, layer.v, layer.v_bias));
  if (config_.qk_norm) {
    const std::vector<std::int64_t> head{signed_size(config_.head_dim)};
    q = at::rms_norm(q, head, layer.q_norm, config_.rms_norm_eps);
    k = at::rms_norm(k, head, layer.k_norm, config_.rms_norm_eps);
  }
  const at::Tensor angles = at::outer(at::arange(tokens, at::kFloat), inverse_frequencies_);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const at::Tensor mixed = at::scaled_dot_product_attention(
      rotate(q, cos, sin), rotate(k, cos, sin), v, {}, 0.0, /*is_causal=*/true, {},
      /*enable_gqa=*/config_.num_kv_heads != config_.num_heads);
  return at::linear(mixed.transpose(1, 2).reshape({sequences, tokens, -1}), layer.o, layer.o_bias);
}

at::Tensor TorchPolicy::log_softmax_at(const Batch& batch) const {
  const std::vector<std::int64_t> hidden{signed_size(config_.hidden_size)};
  at::Tensor x = at::embedding(embedding_, batch.ids);
  for (const LayerWeights& layer : layers_) {
    x = x + attention(layer, at::rms_norm(x, hidden, layer.input_norm, config_.rms_norm_eps));
    const at::Tensor y = at::rms_norm(x, hidden, layer.post_norm, config_.rms_norm_eps);
    const at::Tensor gated = at::silu(at::linear(y, layer.gate, layer.gate_bias)) *
                             at::linear(y, layer.up, layer.up_bias);
    x = x + at::linear(gated, layer.down, layer.down_bias);
  }
  x = x.view({-1, hidden[0]}).index_select(0, batch.places);
  x = at::rms_norm(x, hidden, final_norm_, config_.rms_norm_eps);
  return at::log_softmax(at::linear(x, lm_head_), -1);
}

TokenScores TorchPolicy::score(std::span<const TokenSequence> sequences) {
  if (sequences.empty()) return {};
  const c10::NoGradGuard no_grad;
  const Batch batch = make_batch(sequences);
  const at::Tensor all = log_softmax_at(batch);
  const at::Tensor chosen = all.gather(1, batch.targets.unsqueeze(1)).squeeze(1).contiguous();
  const at::Tensor greedy = all.argmax(1).eq(batch.targets).contiguous();
  TokenScores scores;
  const auto count = chosen.numel();
  scores.logprobs.assign(chosen.const_data_ptr<float>(), chosen.const_data_ptr<float>() + count);
  scores.greedy.assign(greedy.const_data_ptr<bool>(), greedy.const_data_ptr<bool>() + count);
  return scores;
}

std::vector<float> TorchPolicy::forward(std::span<const TokenSequence> sequences) {
  const Batch batch = make_batch(sequences);
  logprobs_ = log_softmax_at(batch).gather(1, batch.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor values = logprobs_.detach().contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

void TorchPolicy::backward(std::span<const float> gradient) {
  const at::Tensor seed = at::empty_like(logprobs_.detach());
  WEFT_CHECK(static_cast<std::size_t>(seed.numel()) == gradient.size());
  std::memcpy(seed.data_ptr<float>(), gradient.data(), gradient.size_bytes());
  logprobs_.backward(seed);
  logprobs_.reset();
}

void TorchPolicy::reset_optimizer(const AdamWOptions& options) {
  options_ = options;
  for (Parameter& parameter : parameters_) {
    parameter.exp_avg = at::zeros_like(parameter.master);
    parameter.exp_avg_sq = at::zeros_like(parameter.master);
    parameter.steps = at::zeros({}, at::kFloat);
    parameter.rounded.mutable_grad() = at::Tensor();
  }
}

double TorchPolicy::step(double learning_rate) {
  const c10::NoGradGuard no_grad;
  double squares = 0;
  non_finite_tensor_.clear();
  for (const Parameter& parameter : parameters_) {
    // A parameter that no loss has reached yet has no gradient.
    if (!parameter.rounded.grad().defined()) continue;
    const double own = parameter.rounded.grad().square().sum(at::kDouble).item<double>();
    if (!std::isfinite(own) && non_finite_tensor_.empty()) non_finite_tensor_ = parameter.name;
    squares += own;
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) return norm;
  const double scale = std::min(1.0, options_.max_grad_norm / (norm + 1e-6));
  for (Parameter& parameter : parameters_) {
    at::Tensor gradient = parameter.rounded.grad();
    if (!gradient.defined()) continue;
    gradient.mul_(scale);
    const double decay = parameter.master.dim() > 1 ? options_.weight_decay : 0.0;
    at::_fused_adamw_({parameter.master}, {gradient}, {parameter.exp_avg}, {parameter.exp_avg_sq},
                      {}, {parameter.steps.add_(1)}, learning_rate, options_.beta1, options_.beta2,
                      decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
    parameter.rounded.mutable_grad() = at::Tensor();
  }
  round_masters();
  return norm;
}

template <typename Visit>
void TorchPolicy::visit_state(Visit&& visit) const {
  for (const Parameter& parameter : parameters_) {
    visit(parameter.name, parameter.master);
    visit(parameter.name + ".exp_avg", parameter.exp_avg);
    visit(parameter.name + ".exp_avg_sq", parameter.exp_avg_sq);
    visit(parameter.name + ".steps", parameter.steps);
  }
}

std::vector<StateTensor> TorchPolicy::state() const {
  std::vector<StateTensor> state;
  visit_state([&](const std::string& name, const at::Tensor& tensor) {
    StateTensor& saved = state.emplace_back();
    saved.spec = {name, DType::kF32, {tensor.sizes().begin(), tensor.sizes().end()}};
    saved.bytes.resize(tensor.nbytes());
    std::memcpy(saved.bytes.data(), tensor.const_data_ptr<float>(), saved.bytes.size());
  });
  return state;
}

Result<void> TorchPolicy::restore(std::span<const StateTensor> state) {
  Result<void> restored;
  visit_state([&](const std::string& name, const at::Tensor& tensor) {
    const TensorSpec spec{name, DType::kF32, {tensor.sizes().begin(), tensor.sizes().end()}};
    const auto saved = std::ranges::find(state, spec, &StateTensor::spec);
    if (saved != state.end()) {
      std::memcpy(tensor.mutable_data_ptr<float>(), saved->bytes.data(), tensor.nbytes());
    } else if (restored) {
      restored = Error(ErrorCode::kCorrupt, "the saved state has no " + name + " of this shape");
    }
  });
  round_masters();
  return restored;
}

void TorchPolicy::write_weights(WeightSet& out) const {
  for (const Parameter& parameter : parameters_) {
    const auto index = out.layout().try_find(parameter.name);
    WEFT_CHECK(index.has_value());
    const at::Tensor bf16 = parameter.rounded.detach().to(at::kBFloat16).contiguous();
    WEFT_CHECK(out.tensor(*index).size() == bf16.nbytes());
    std::memcpy(out.tensor(*index).data(), bf16.const_data_ptr(), bf16.nbytes());
  }
}

}  // namespace

Result<std::unique_ptr<Policy>> Policy::create(const ModelConfig& config, std::uint64_t seed,
                                               unsigned threads) {
  if (config.rope.kind != RopeConfig::Kind::kDefault) {
    return Error(ErrorCode::kUnsupported, "the trainer knows the default rotary embedding only");
  }
  if (config.sliding_window) {
    return Error(ErrorCode::kUnsupported, "the trainer knows no sliding window");
  }
  at::set_num_threads(static_cast<int>(threads));
  return std::make_unique<TorchPolicy>(config, seed);
}

}  // namespace weft
