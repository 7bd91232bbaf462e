#pragma once
// ModelConfig: what config.json says of a Llama, Qwen2 or Qwen3 model, checked. Immutable once
// parsed.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/tensor.h"

namespace weft {

enum class Architecture { kLlama, kQwen2, kQwen3 };

// Rotary position embedding. Source: transformers' modeling_rope_utils.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kDynamic, kLlama3, kYarn };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                          // all but kDefault
  double low_freq_factor = 1.0;                 // kLlama3
  double high_freq_factor = 4.0;                // kLlama3
  double original_max_position_embeddings = 0;  // kLlama3, kYarn, kDynamic
  double beta_fast = 32.0;                      // kYarn
  double beta_slow = 1.0;                       // kYarn
  double attention_factor = 1.0;                // kYarn: multiplies cos and sin
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::uint64_t vocab_size = 0;
  std::uint64_t hidden_size = 0;
  std::uint64_t intermediate_size = 0;
  std::uint64_t num_layers = 0;
  std::uint64_t num_heads = 0;
  std::uint64_t num_kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;     // Qwen2 always, Llama by `attention_bias`
  bool output_bias = false;  // Llama's `attention_bias` covers o_proj too
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3
  // Layers that look at the last `sliding_window` positions only; none where empty.
  std::optional<std::uint64_t> sliding_window;
  std::vector<bool> sliding_layers;          // [num_layers] when sliding_window is set
  std::optional<DType> dtype;                // `dtype` or `torch_dtype`, a hint
  std::vector<std::uint32_t> eos_token_ids;  // of config.json; blocking_load_checkpoint prefers
                                             // generation_config.json's
  std::optional<std::uint32_t> bos_token_id;

  // Errors: kUnsupported naming the architecture, or the key (with its value) that changes the
  // maths and is not supported: mixture of experts, quantization_config, LoRA, hidden_act, partial
  // rotary, ... kInvalidArgument for a missing key or one of the wrong type. Keys that do not
  // change the maths are ignored.
  static Result<ModelConfig> parse(std::string_view config_json);
};

// `eos_token_id` of a generation_config.json, the only field of it that is taken: sampling defaults
// that a model folder sets behind a trainer's back make its log-probabilities wrong. Empty where it
// has none. Errors: kInvalidArgument.
Result<std::vector<std::uint32_t>> parse_end_tokens(std::string_view generation_config_json,
                                                    std::uint64_t vocab_size);

// Every tensor a checkpoint of this model has, by Hugging Face name and shape; `lm_head.weight`
// only where the embedding is not tied. dtype is config.dtype, or BF16.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

}  // namespace weft
