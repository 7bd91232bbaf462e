#include <utility>

#include <fmt/core.h>

#include "weft/model/config.h"

namespace weft {

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  const DType dtype = config.dtype.value_or(DType::kBF16);
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::string name, Shape shape) {
    tensors.push_back({std::move(name), dtype, std::move(shape)});
  };
  // A linear layer's weight is [outputs, inputs].
  const auto add_linear = [&](const std::string& name, std::uint64_t outputs, std::uint64_t inputs,
                              bool bias) {
    add(name + ".weight", {outputs, inputs});
    if (bias) add(name + ".bias", {outputs});
  };
  const std::uint64_t hidden = config.hidden_size;
  const std::uint64_t q_size = config.num_heads * config.head_dim;
  const std::uint64_t kv_size = config.num_kv_heads * config.head_dim;

  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (std::uint64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add(prefix + "input_layernorm.weight", {hidden});
    add_linear(prefix + "self_attn.q_proj", q_size, hidden, config.qkv_bias);
    add_linear(prefix + "self_attn.k_proj", kv_size, hidden, config.qkv_bias);
    add_linear(prefix + "self_attn.v_proj", kv_size, hidden, config.qkv_bias);
    add_linear(prefix + "self_attn.o_proj", hidden, q_size, config.output_bias);
    if (config.qk_norm) {
      add(prefix + "self_attn.q_norm.weight", {config.head_dim});
      add(prefix + "self_attn.k_norm.weight", {config.head_dim});
    }
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add_linear(prefix + "mlp.gate_proj", config.intermediate_size, hidden, config.mlp_bias);
    add_linear(prefix + "mlp.up_proj", config.intermediate_size, hidden, config.mlp_bias);
    add_linear(prefix + "mlp.down_proj", hidden, config.intermediate_size, config.mlp_bias);
  }
  add("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, hidden});
  return tensors;
}

}  // namespace weft
