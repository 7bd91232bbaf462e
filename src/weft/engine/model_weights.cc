#include "weft/engine/model_weights.h"

#include <string>
#include <utility>

#include <fmt/core.h>

namespace weft {
namespace {

// Every tensor the config expects is in the set, of its shape and a type that kernels read.
Result<void> check_set(const ModelConfig& config, const WeightLayout& layout) {
  for (const TensorSpec& expected : expected_tensors(config)) {
    const auto index = layout.try_find(expected.name);
    if (!index) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("{}: missing", expected.name));
    }
    const TensorSpec& spec = layout.tensors()[*index];
    const bool readable =
        spec.dtype == DType::kBF16 || spec.dtype == DType::kF16 || spec.dtype == DType::kF32;
    if (spec.shape != expected.shape || !readable) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: is {} {}, expected BF16, F16 or F32 {}", expected.name,
                      dtype_name(spec.dtype), shape_text(spec.shape), shape_text(expected.shape)));
    }
  }
  return {};
}

// Looks tensors up by name; those that are not there are empty.
class Binder {
 public:
  explicit Binder(const WeightSet& set) : set_(set) {}

  kernels::Weights weights(const std::string& name) const {
    const auto index = set_.layout().try_find(name);
    if (!index) return {};
    return {set_.tensor(*index).data(), set_.layout().tensors()[*index].dtype};
  }
  LinearWeights linear(const std::string& name, std::uint64_t outputs) const {
    return {weights(name + ".weight"), weights(name + ".bias"), outputs};
  }

 private:
  const WeightSet& set_;
};

LayerWeights bind_layer(const ModelConfig& config, const Binder& binder,
                        const std::string& prefix) {
  const std::uint64_t q_size = config.num_heads * config.head_dim;
  const std::uint64_t kv_size = config.num_kv_heads * config.head_dim;
  return {
      .input_norm = binder.weights(prefix + "input_layernorm.weight"),
      .q = binder.linear(prefix + "self_attn.q_proj", q_size),
      .k = binder.linear(prefix + "self_attn.k_proj", kv_size),
      .v = binder.linear(prefix + "self_attn.v_proj", kv_size),
      .o = binder.linear(prefix + "self_attn.o_proj", config.hidden_size),
      .q_norm = binder.weights(prefix + "self_attn.q_norm.weight"),
      .k_norm = binder.weights(prefix + "self_attn.k_norm.weight"),
      .post_attention_norm = binder.weights(prefix + "post_attention_layernorm.weight"),
      .gate = binder.linear(prefix + "mlp.gate_proj", config.intermediate_size),
      .up = binder.linear(prefix + "mlp.up_proj", config.intermediate_size),
      .down = binder.linear(prefix + "mlp.down_proj", config.hidden_size),
  };
}

}  // namespace

Result<ModelWeights> ModelWeights::bind(const ModelConfig& config,
                                        std::shared_ptr<const WeightSet> set) {
  WEFT_TRY_VOID(check_set(config, set->layout()));
  const Binder binder(*set);
  ModelWeights model;
  model.embedding = binder.weights("model.embed_tokens.weight");
  for (std::uint64_t layer = 0; layer < config.num_layers; ++layer) {
    model.layers.push_back(bind_layer(config, binder, fmt::format("model.layers.{}.", layer)));
  }
  model.norm = binder.weights("model.norm.weight");
  model.lm_head = config.tie_word_embeddings ? LinearWeights{model.embedding, {}, config.vocab_size}
                                             : binder.linear("lm_head", config.vocab_size);
  model.set = std::move(set);
  return model;
}

}  // namespace weft
