#include "weft/trainer/policy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "weft/trainer/batch.h"

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

at::Tensor indices(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

// A TokenBatch as tensors.
struct Batch {
  explicit Batch(const TokenBatch& tokens)
      : ids(indices(tokens.ids).view({signed_size(tokens.rows), -1})),
        places(indices(tokens.places)),
        place_of(indices(tokens.place_of)),
        targets(indices(tokens.targets)) {
    if (tokens.sees.empty()) return;
    positions = indices(tokens.positions).view(ids.sizes());
    sees = at::from_blob(const_cast<std::uint8_t*>(tokens.sees.data()),
                         {ids.size(0), 1, ids.size(1), ids.size(1)}, at::kByte)
               .to(at::kBool);
  }

  at::Tensor ids;                        // [rows, tokens]
  at::Tensor places, place_of, targets;  // as in TokenBatch
  at::Tensor positions;                  // [rows, tokens]; undefined: every row counts from 0
  at::Tensor sees;                       // [rows, 1, tokens, tokens]; undefined: causal
};

std::vector<double> doubles_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// sum(gradient * tensor): a scalar whose derivative by `tensor` is `gradient`.
at::Tensor weighed(const at::Tensor& tensor, std::span<const double> gradient) {
  WEFT_CHECK(static_cast<std::size_t>(tensor.numel()) == gradient.size());
  const at::Tensor weights = at::empty({tensor.numel()}, at::kDouble);
  std::memcpy(weights.data_ptr<double>(), gradient.data(), gradient.size_bytes());
  return (tensor * weights.to(at::kFloat)).sum();
}

// Rotates the halves of each head. Source: Su et al., "RoFormer", in the layout of transformers'
// apply_rotary_pos_emb. `x` is [rows, heads, tokens, head_dim]; `cos`, `sin` [tokens, head_dim /
// 2], or [rows, 1, tokens, head_dim / 2].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

class TorchPolicy final : public Policy {
 public:
  TorchPolicy(const ModelConfig& config, std::uint64_t seed);

  std::unique_ptr<Policy> clone() const override;
  TokenScores score(std::span<const TokenSequence> sequences) override;
  std::vector<double> judge(std::span<const TokenSequence> sequences) override;
  TokenScores forward(std::span<const TokenSequence> sequences, std::size_t row_tokens) override;
  void backward(const TokenGradient& gradient) override;
  std::vector<double> forward_judgement(std::span<const TokenSequence> sequences) override;
  void backward_judgement(std::span<const double> gradient) override;
  void reset_optimizer(const AdamWOptions& options) override;
  double step(double learning_rate) override;
  const std::string& non_finite() const override { return non_finite_; }
  std::vector<StateTensor> state() const override;
  Result<void> restore(std::span<const StateTensor> state) override;
  void write_weights(WeightSet& out) const override;
  void read_weights(const WeightSet& weights) override;

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
  // Of the tokens of a batch, with their graphs; [scored] each, `greedy` aside without it.
  struct Scored {
    at::Tensor logprobs, entropies, values, greedy;
  };

  void add_parameter(const std::string& name, at::Tensor master);
  at::Tensor weight(std::string_view name) const;
  void bind_layers();
  void round_masters();
  at::Tensor attention(const LayerWeights& layer, const at::Tensor& x, const Batch& batch) const;
  // The last hidden states at the batch's places; [scored, hidden].
  at::Tensor hidden_at(const Batch& batch) const;
  Scored scored(const Batch& batch) const;
  at::Tensor judged(std::span<const TokenSequence> sequences) const;

  ModelConfig config_;
  AdamWOptions options_;
  std::vector<Parameter> parameters_;
  at::Tensor embedding_, final_norm_, lm_head_, scalar_head_, inverse_frequencies_;
  std::vector<LayerWeights> layers_;
  Scored scored_;         // of forward(), with its graph
  at::Tensor judgement_;  // of forward_judgement(), likewise
  std::string non_finite_;
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
    add_parameter(spec.name, master);
  }
  add_parameter(std::string(kScalarHead), at::zeros({1, signed_size(config.hidden_size)}));
  round_masters();
  for (Parameter& parameter : parameters_) parameter.rounded.requires_grad_(true);
  bind_layers();
}

void TorchPolicy::add_parameter(const std::string& name, at::Tensor master) {
  at::Tensor rounded = at::empty_like(master);
  parameters_.push_back({name, std::move(master), std::move(rounded), {}, {}, {}});
}

std::unique_ptr<Policy> TorchPolicy::clone() const {
  auto copy = std::make_unique<TorchPolicy>(config_, 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    copy->parameters_[i].master.copy_(parameters_[i].master);
  }
  copy->round_masters();
  return copy;
}

at::Tensor TorchPolicy::weight(std::string_view name) const {
  const auto at = std::ranges::find(parameters_, name, &Parameter::name);
  return at == parameters_.end() ? at::Tensor() : at->rounded;
}

void TorchPolicy::bind_layers() {
  embedding_ = weight("model.embed_tokens.weight");
  final_norm_ = weight("model.norm.weight");
  lm_head_ = config_.tie_word_embeddings ? embedding_ : weight("lm_head.weight");
  scalar_head_ = weight(kScalarHead);
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

at::Tensor TorchPolicy::attention(const LayerWeights& layer, const at::Tensor& x,
                                  const Batch& batch) const {
  const std::int64_t rows = x.size(0), tokens = x.size(1);
  const auto heads_of = [&](const at::Tensor& projected) {
    return projected.view({rows, tokens, -1, signed_size(config_.head_dim)}).transpose(1, 2);
  };
  at::Tensor q = heads_of(at::linear(x, layer.q, layer.q_bias));
  at::Tensor k = heads_of(at::linear(x, layer.k, layer.k_bias));
  const at::Tensor v = heads_of(at::linear(x, layer.v, layer.v_bias));
  if (config_.qk_norm) {
    const std::vector<std::int64_t> head{signed_size(config_.head_dim)};
    q = at::rms_norm(q, head, layer.q_norm, config_.rms_norm_eps);
    k = at::rms_norm(k, head, layer.k_norm, config_.rms_norm_eps);
  }
  const at::Tensor angles =
      batch.positions.defined()
          ? batch.positions.to(at::kFloat).unsqueeze(1).unsqueeze(3) * inverse_frequencies_
          : at::outer(at::arange(tokens, at::kFloat), inverse_frequencies_);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const at::Tensor mixed = at::scaled_dot_product_attention(
      rotate(q, cos, sin), rotate(k, cos, sin), v,
      batch.sees.defined() ? std::optional(batch.sees) : std::nullopt, 0.0,
      /*is_causal=*/!batch.sees.defined(), {},
      /*enable_gqa=*/config_.num_kv_heads != config_.num_heads);
  return at::linear(mixed.transpose(1, 2).reshape({rows, tokens, -1}), layer.o, layer.o_bias);
}

at::Tensor TorchPolicy::hidden_at(const Batch& batch) const {
  const std::vector<std::int64_t> hidden{signed_size(config_.hidden_size)};
  at::Tensor x = at::embedding(embedding_, batch.ids);
  for (const LayerWeights& layer : layers_) {
    x = x +
        attention(layer, at::rms_norm(x, hidden, layer.input_norm, config_.rms_norm_eps), batch);
    const at::Tensor y = at::rms_norm(x, hidden, layer.post_norm, config_.rms_norm_eps);
    const at::Tensor gated = at::silu(at::linear(y, layer.gate, layer.gate_bias)) *
                             at::linear(y, layer.up, layer.up_bias);
    x = x + at::linear(gated, layer.down, layer.down_bias);
  }
  x = x.view({-1, hidden[0]}).index_select(0, batch.places);
  return at::rms_norm(x, hidden, final_norm_, config_.rms_norm_eps);
}

TorchPolicy::Scored TorchPolicy::scored(const Batch& batch) const {
  const at::Tensor hidden = hidden_at(batch);
  const at::Tensor all = at::log_softmax(at::linear(hidden, lm_head_), -1);
  const auto of_scored = [&](const at::Tensor& at_places) {
    return at_places.index_select(0, batch.place_of);
  };
  const at::Tensor chosen = batch.place_of * all.size(1) + batch.targets;
  return {all.view(-1).index_select(0, chosen), of_scored(-(all.exp() * all).sum(1)),
          of_scored(at::linear(hidden, scalar_head_).squeeze(1)),
          of_scored(all.argmax(1)).eq(batch.targets)};
}

at::Tensor TorchPolicy::judged(std::span<const TokenSequence> sequences) const {
  const Batch batch(make_judged_batch(sequences));
  return at::linear(hidden_at(batch), scalar_head_).squeeze(1).index_select(0, batch.place_of);
}

TokenScores TorchPolicy::score(std::span<const TokenSequence> sequences) {
  if (sequences.empty()) return {};
  const c10::NoGradGuard no_grad;
  return forward(sequences, 0);
}

TokenScores TorchPolicy::forward(std::span<const TokenSequence> sequences, std::size_t row_tokens) {
  scored_ = scored(Batch(make_batch(sequences, row_tokens)));
  const at::Tensor greedy = scored_.greedy.contiguous();
  const bool* const is_greedy = greedy.const_data_ptr<bool>();
  TokenScores scores;
  scores.logprobs = doubles_of(scored_.logprobs);
  scores.entropies = doubles_of(scored_.entropies);
  scores.values = doubles_of(scored_.values);
  scores.greedy.assign(is_greedy, is_greedy + greedy.numel());
  return scores;
}

void TorchPolicy::backward(const TokenGradient& gradient) {
  at::Tensor sum;
  const auto add = [&](const at::Tensor& scores, std::span<const double> part) {
    if (part.empty()) return;
    const at::Tensor term = weighed(scores, part);
    sum = sum.defined() ? sum + term : term;
  };
  add(scored_.logprobs, gradient.logprobs);
  add(scored_.entropies, gradient.entropies);
  add(scored_.values, gradient.values);
  if (sum.defined()) sum.backward();
  scored_ = {};
}

std::vector<double> TorchPolicy::judge(std::span<const TokenSequence> sequences) {
  if (sequences.empty()) return {};
  const c10::NoGradGuard no_grad;
  return doubles_of(judged(sequences));
}

std::vector<double> TorchPolicy::forward_judgement(std::span<const TokenSequence> sequences) {
  judgement_ = judged(sequences);
  return doubles_of(judgement_);
}

void TorchPolicy::backward_judgement(std::span<const double> gradient) {
  weighed(judgement_, gradient).backward();
  judgement_.reset();
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
  non_finite_.clear();
  for (const Parameter& parameter : parameters_) {
    // A parameter that no loss has reached yet has no gradient.
    if (!parameter.rounded.grad().defined()) continue;
    const double own = parameter.rounded.grad().square().sum(at::kDouble).item<double>();
    if (!std::isfinite(own) && non_finite_.empty()) {
      non_finite_ = "the gradient of " + parameter.name;
    }
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
  for (const Parameter& parameter : parameters_) {
    if (parameter.rounded.isfinite().all().item<bool>()) continue;
    non_finite_ = parameter.name;
    return std::nan("");
  }
  return norm;
}

template <typename Visit>
void TorchPolicy::visit_state(Visit&& visit) const {
  for (const Parameter& parameter : parameters_) {
    visit(parameter.name, parameter.master);
    if (!parameter.steps.defined()) continue;  // there is no optimizer
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
    if (!index) continue;
    const auto bytes = out.tensor(*index);
    const at::Tensor bf16 = at::from_blob(bytes.data(), parameter.rounded.sizes(), at::kBFloat16);
    WEFT_CHECK(bytes.size() == bf16.nbytes());
    bf16.copy_(parameter.rounded.detach());
  }
}

void TorchPolicy::read_weights(const WeightSet& weights) {
  for (Parameter& parameter : parameters_) {
    const auto index = weights.layout().try_find(parameter.name);
    if (!index) continue;
    const at::Tensor bf16 = at::empty(parameter.master.sizes(), at::kBFloat16);
    WEFT_CHECK(weights.tensor(*index).size() == bf16.nbytes());
    std::memcpy(bf16.mutable_data_ptr(), weights.tensor(*index).data(), bf16.nbytes());
    parameter.master.copy_(bf16);
  }
  round_masters();
}

}  // namespace

void Policy::set_threads(unsigned threads) {
  at::set_num_threads(static_cast<int>(threads));
}

Result<std::unique_ptr<Policy>> Policy::create(const ModelConfig& config, std::uint64_t seed,
                                               unsigned threads) {
  if (config.rope.kind != RopeConfig::Kind::kDefault) {
    return Error(ErrorCode::kUnsupported, "the trainer knows the default rotary embedding only");
  }
  if (config.sliding_window) {
    return Error(ErrorCode::kUnsupported, "the trainer knows no sliding window");
  }
  set_threads(threads);
  auto policy = std::make_unique<TorchPolicy>(config, seed);
  policy->reset_optimizer({});
  return policy;
}

}  // namespace weft
