#include "weft/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/format/json.h"

namespace weft {
namespace {

namespace json = boost::json;

// Far above any model, and small enough that no size below overflows 64 bits unnoticed.
constexpr std::uint64_t kMaxDimension = 1ull << 31;
constexpr std::uint64_t kMaxLayers = 4096;

Error unsupported(std::string_view key, const json::value& value) {
  return Error(ErrorCode::kUnsupported,
               fmt::format("`{}`: {} changes the model's maths and is not supported", key,
                           json::serialize(value)));
}

bool says(const json::value& value, std::string_view text) {
  return value.is_string() && value.get_string() == text;
}

// The members of one JSON object, by name. A null counts as absent, as transformers takes it.
class Fields {
 public:
  // `prefix` goes in front of names in messages: "rope_parameters.".
  Fields(const json::object& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const json::value* find(std::string_view key) const {
    const json::value* const value = object_.if_contains(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  // Not even null, which the classes of transformers tell from absent where their default is no
  // null.
  bool is_absent(std::string_view key) const { return !object_.contains(key); }

  Error wrong(std::string_view key, std::string_view expected) const {
    const json::value* const value = find(key);
    const std::string got = value == nullptr ? "it is missing" : "got " + json::serialize(*value);
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("`{}{}` must be {}; {}", prefix_, key, expected, got));
  }

  // A whole number from 1 to `max`.
  Result<std::uint64_t> count(std::string_view key, std::uint64_t max = kMaxDimension) const {
    const json::value* const value = find(key);
    boost::system::error_code failed;
    const auto number = value == nullptr ? 0 : value->to_number<std::uint64_t>(failed);
    if (value == nullptr || !value->is_number() || failed || number < 1 || number > max) {
      return wrong(key, fmt::format("a whole number from 1 to {}", max));
    }
    return number;
  }
  Result<std::uint64_t> count_or(std::string_view key, std::uint64_t absent) const {
    if (find(key) == nullptr) return absent;
    return count(key);
  }
  Result<double> positive(std::string_view key) const {
    const json::value* const value = find(key);
    const double number = value == nullptr || !value->is_number() ? -1 : value->to_number<double>();
    if (!(number > 0) || !std::isfinite(number)) return wrong(key, "a number above 0");
    return number;
  }
  Result<double> positive_or(std::string_view key, double absent) const {
    if (find(key) == nullptr) return absent;
    return positive(key);
  }
  Result<bool> flag_or(std::string_view key, bool absent) const {
    const json::value* const value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_bool()) return wrong(key, "true or false");
    return value->get_bool();
  }
  Result<std::string> text_or(std::string_view key, std::string_view absent) const {
    const json::value* const value = find(key);
    if (value == nullptr) return std::string(absent);
    if (!value->is_string()) return wrong(key, "a string");
    return std::string(value->get_string());
  }

 private:
  const json::object& object_;
  std::string prefix_;
};

// ---- What is refused ----

// Keys of configs that are otherwise Llama's or Qwen's, each with what it asks for. Neutral where
// absent, null, false, 0, empty, or equal to `neutral`.
struct RefusedKey {
  std::string_view key;
  double neutral = 0;
};
constexpr auto kRefusedKeys = std::to_array<RefusedKey>({
    // Mixture of experts.
    {"num_experts"},
    {"num_local_experts"},
    {"n_routed_experts"},
    {"num_experts_per_tok"},
    {"moe_intermediate_size"},
    {"shared_expert_intermediate_size"},
    // Quantised weights.
    {"quantization_config"},
    {"compression_config"},
    // Adapters kept in the config.
    {"lora_config"},
    {"peft_config"},
    // Rotary embedding on a part of the head, on some layers, or interleaved.
    {"partial_rotary_factor", 1},
    {"rotary_pct", 1},
    {"rope_interleaved"},
    {"no_rope_layers"},
    {"no_rope_layer_interval"},
    {"use_mrope"},
    {"alibi"},
    // Attention that is neither full nor a sliding window, or is normalised otherwise.
    {"attention_chunk_size"},
    {"attn_logit_softcapping"},
    {"final_logit_softcapping"},
    {"attn_temperature_tuning"},
    {"query_pre_attn_scalar"},
    {"clip_qkv"},
    {"use_qk_norm"},
    {"qk_layernorm"},
    {"use_bidirectional_attention"},
    {"dual_chunk_attention_config"},
    {"pruned_heads"},
    {"add_cross_attention"},
    {"is_encoder_decoder"},
    // Multipliers in the manner of muP, Granite and MiniCPM.
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"attention_multiplier"},
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"scale_emb", 1},
    {"scale_depth"},
    {"dim_model_base"},
    {"mup_width_multiplier", 1},
});

bool is_neutral(const json::value& value, double neutral) {
  if (value.is_bool()) return !value.get_bool();
  if (value.is_number()) {
    const auto number = value.to_number<double>();
    return number == 0 || number == neutral;
  }
  if (value.is_array()) return value.get_array().empty();
  if (value.is_object()) return value.get_object().empty();
  return value.is_null();
}

Result<void> refuse_other_maths(const Fields& fields) {
  for (const RefusedKey& refused : kRefusedKeys) {
    const json::value* const value = fields.find(refused.key);
    if (value != nullptr && !is_neutral(*value, refused.neutral)) {
      return unsupported(refused.key, *value);
    }
  }
  if (const json::value* const causal = fields.find("is_causal");
      causal != nullptr && is_neutral(*causal, 0)) {
    return unsupported("is_causal", *causal);
  }
  for (const std::string_view key : {"hidden_act", "hidden_activation"}) {
    const json::value* const value = fields.find(key);
    // transformers knows SiLU by both names.
    if (value != nullptr && !says(*value, "silu") && !says(*value, "swish")) {
      return unsupported(key, *value);
    }
  }
  return {};
}

// ---- The parts of a config ----

struct Family {
  Architecture architecture;
  std::string_view class_name;
  std::string_view model_type;
};
constexpr auto kFamilies = std::to_array<Family>({
    {Architecture::kLlama, "LlamaForCausalLM", "llama"},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
});

// By `architectures` where it is given, and `model_type` must then not say otherwise.
Result<Architecture> parse_architecture(const Fields& fields) {
  constexpr std::string_view kSupported =
      "supported are LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM";
  const json::value* const classes = fields.find("architectures");
  const json::value* const type = fields.find("model_type");
  if (classes == nullptr && type == nullptr) {
    return fields.wrong("architectures", "a list with one class name");
  }
  if (classes != nullptr && (!classes->is_array() || classes->get_array().size() != 1)) {
    return fields.wrong("architectures", "a list with one class name");
  }
  const auto family = std::ranges::find_if(kFamilies, [&](const Family& known) {
    return classes != nullptr ? says(classes->get_array().front(), known.class_name)
                              : says(*type, known.model_type);
  });
  if (family == kFamilies.end()) {
    const json::value& name = classes != nullptr ? classes->get_array().front() : *type;
    return Error(ErrorCode::kUnsupported, fmt::format("architecture {} is not supported; {}",
                                                      json::serialize(name), kSupported));
  }
  if (type != nullptr && !says(*type, family->model_type)) {
    return fields.wrong("model_type", fmt::format("\"{}\", the model type of {}",
                                                  family->model_type, family->class_name));
  }
  return family->architecture;
}

Result<void> parse_yarn(const Fields& rope, RopeConfig& config) {
  WEFT_TRY(config.beta_fast, rope.positive_or("beta_fast", 32.0));
  WEFT_TRY(config.beta_slow, rope.positive_or("beta_slow", 1.0));
  for (const std::string_view key : {"mscale", "mscale_all_dim"}) {
    if (const json::value* const value = rope.find(key)) return unsupported(key, *value);
  }
  if (const json::value* const truncate = rope.find("truncate");
      truncate != nullptr && (!truncate->is_bool() || !truncate->get_bool())) {
    return unsupported("truncate", *truncate);
  }
  // Source: get_mscale in transformers' _compute_yarn_parameters, the YaRN paper's equation 22.
  const double inferred = config.factor <= 1 ? 1.0 : 0.1 * std::log(config.factor) + 1.0;
  WEFT_TRY(config.attention_factor, rope.positive_or("attention_factor", inferred));
  return {};
}

// `max_positions` stands in for a missing original length, as in transformers.
Result<RopeConfig> parse_rope_object(const Fields& rope, double theta, std::uint64_t max_positions,
                                     const json::value& whole) {
  RopeConfig config;
  WEFT_TRY(config.theta, rope.positive_or("rope_theta", theta));
  WEFT_TRY(const std::string legacy_type, rope.text_or("type", "default"));
  WEFT_TRY(const std::string type, rope.text_or("rope_type", legacy_type));
  if (const json::value* const part = rope.find("partial_rotary_factor");
      part != nullptr && !is_neutral(*part, 1)) {
    return unsupported("partial_rotary_factor", *part);
  }
  if (const json::value* const sections = rope.find("mrope_section")) {
    return unsupported("mrope_section", *sections);
  }
  // A set of its own for each layer type.
  for (const json::key_value_pair& member : whole.get_object()) {
    if (member.value().is_object()) return unsupported(member.key(), member.value());
  }
  if (type == "default") return config;

  using Kind = RopeConfig::Kind;
  constexpr auto kKinds =
      std::to_array<std::pair<std::string_view, Kind>>({{"linear", Kind::kLinear},
                                                        {"dynamic", Kind::kDynamic},
                                                        {"llama3", Kind::kLlama3},
                                                        {"yarn", Kind::kYarn}});
  const auto kind = std::ranges::find(kKinds, type, &std::pair<std::string_view, Kind>::first);
  if (kind == kKinds.end()) return unsupported("rope_parameters", whole);
  config.kind = kind->second;
  WEFT_TRY(config.factor, rope.positive("factor"));
  WEFT_TRY(
      config.original_max_position_embeddings,
      rope.positive_or("original_max_position_embeddings", static_cast<double>(max_positions)));
  if (config.kind == Kind::kDynamic) {
    // transformers measures the stretch against the config's own length here.
    config.original_max_position_embeddings = static_cast<double>(max_positions);
  }
  if (config.kind == Kind::kLlama3) {
    WEFT_TRY(config.low_freq_factor, rope.positive("low_freq_factor"));
    WEFT_TRY(config.high_freq_factor, rope.positive("high_freq_factor"));
    if (config.high_freq_factor <= config.low_freq_factor) {
      return rope.wrong("high_freq_factor", "above low_freq_factor");
    }
  }
  if (config.kind == Kind::kYarn) WEFT_TRY_VOID(parse_yarn(rope, config));
  return config;
}

// `rope_parameters` since transformers 5, `rope_scaling` beside a top-level `rope_theta` before it.
// Where both are there transformers reads `rope_scaling`, and a theta inside wins over the one at
// the top.
Result<RopeConfig> parse_rope(const Fields& fields, std::uint64_t max_positions) {
  WEFT_TRY(const double theta, fields.positive_or("rope_theta", 10000.0));
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const json::value* const value = fields.find(key);
    if (value == nullptr) continue;
    if (!value->is_object()) return fields.wrong(key, "an object");
    if (value->get_object().empty()) continue;
    // Beside the object some implementations prefer it to the one inside, others do not read it.
    constexpr std::string_view kOriginal = "original_max_position_embeddings";
    const json::value* const outside = fields.find(kOriginal);
    const json::value* const inside = value->get_object().if_contains(kOriginal);
    if (outside != nullptr && (inside == nullptr || *inside != *outside)) {
      return unsupported(kOriginal, *outside);
    }
    return parse_rope_object(Fields(value->get_object(), fmt::format("{}.", key)), theta,
                             max_positions, *value);
  }
  RopeConfig config;
  config.theta = theta;
  return config;
}

// Which layers are windowed: by `layer_types` where given, else all from `max_window_layers` on.
Result<void> parse_layer_types(const Fields& fields, ModelConfig& config) {
  const json::value* const types = fields.find("layer_types");
  if (types == nullptr) {
    // Source: Qwen2Config and Qwen3Config, whose default is 28.
    const json::value* const first = fields.find("max_window_layers");
    boost::system::error_code failed;
    const auto first_windowed = first == nullptr ? 28 : first->to_number<std::uint64_t>(failed);
    if (failed) return fields.wrong("max_window_layers", "a whole number");
    for (std::uint64_t layer = 0; layer < config.num_layers; ++layer) {
      config.sliding_layers.push_back(layer >= first_windowed);
    }
    return {};
  }
  if (!types->is_array() || types->get_array().size() != config.num_layers) {
    return fields.wrong("layer_types", fmt::format("a list of {} names", config.num_layers));
  }
  for (const json::value& type : types->get_array()) {
    const bool sliding = says(type, "sliding_attention");
    if (!sliding && !says(type, "full_attention")) return unsupported("layer_types", type);
    config.sliding_layers.push_back(sliding);
  }
  return {};
}

Result<void> parse_sliding_window(const Fields& fields, ModelConfig& config) {
  WEFT_TRY_VOID(parse_layer_types(fields, config));
  const json::value* const window = fields.find("sliding_window");
  if (config.architecture == Architecture::kLlama) {
    // transformers' Llama has no window, vLLM's applies one: nobody can say what is meant.
    if (window != nullptr) return unsupported("sliding_window", *window);
  } else {
    WEFT_TRY(const bool use, fields.flag_or("use_sliding_window", false));
    if (use && (window != nullptr || fields.is_absent("sliding_window"))) {
      // Source of the default: Qwen2Config and Qwen3Config.
      WEFT_TRY(config.sliding_window, fields.count_or("sliding_window", 4096));
      return {};
    }
  }
  if (fields.find("layer_types") != nullptr &&
      std::ranges::find(config.sliding_layers, true) != config.sliding_layers.end()) {
    return fields.wrong("sliding_window", "set, as layer_types asks for it");
  }
  config.sliding_layers.clear();
  return {};
}

Result<void> parse_dtype(const Fields& fields, ModelConfig& config) {
  const std::string_view key = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  WEFT_TRY(const std::string name, fields.text_or(key, "auto"));
  if (name == "auto") return {};
  config.dtype = try_parse_torch_dtype(name);
  if (!config.dtype || !is_float(*config.dtype)) {
    return fields.wrong(key, "a floating-point type such as \"bfloat16\"");
  }
  return {};
}

Result<void> parse_heads(const Fields& fields, ModelConfig& config) {
  WEFT_TRY(config.num_heads, fields.count("num_attention_heads"));
  // Source of both defaults: Qwen2Config and Qwen3Config. A null means what Llama's absence does.
  const bool is_qwen = config.architecture != Architecture::kLlama;
  const std::uint64_t kv_heads =
      is_qwen && fields.is_absent("num_key_value_heads") ? 32 : config.num_heads;
  WEFT_TRY(config.num_kv_heads, fields.count_or("num_key_value_heads", kv_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    return fields.wrong("num_key_value_heads",
                        fmt::format("a divisor of the {} attention heads", config.num_heads));
  }
  if (config.architecture == Architecture::kQwen3 && fields.is_absent("head_dim")) {
    config.head_dim = 128;
    return {};
  }
  if (fields.find("head_dim") == nullptr && config.hidden_size % config.num_heads != 0) {
    return fields.wrong("head_dim",
                        fmt::format("given, as hidden_size {} is no multiple of {} heads",
                                    config.hidden_size, config.num_heads));
  }
  WEFT_TRY(config.head_dim, fields.count_or("head_dim", config.hidden_size / config.num_heads));
  if (config.head_dim % 2 != 0) return fields.wrong("head_dim", "even, for rotary embedding");
  return {};
}

Result<void> parse_biases(const Fields& fields, ModelConfig& config) {
  WEFT_TRY(const bool attention_bias, fields.flag_or("attention_bias", false));
  WEFT_TRY(const bool mlp_bias, fields.flag_or("mlp_bias", false));
  const bool is_qwen2 = config.architecture == Architecture::kQwen2;
  config.qkv_bias = is_qwen2 || attention_bias;
  config.output_bias = !is_qwen2 && attention_bias;
  config.mlp_bias = config.architecture == Architecture::kLlama && mlp_bias;
  config.qk_norm = config.architecture == Architecture::kQwen3;
  return {};
}

Result<std::vector<std::uint32_t>> parse_token_ids(const Fields& fields, std::string_view key,
                                                   std::uint64_t vocab_size) {
  std::vector<std::uint32_t> ids;
  const json::value* const value = fields.find(key);
  if (value == nullptr) return ids;
  const json::array one{*value};
  for (const json::value& id : value->is_array() ? value->get_array() : one) {
    boost::system::error_code failed;
    const auto number = id.is_number() ? id.to_number<std::uint64_t>(failed) : vocab_size;
    if (failed || number >= vocab_size) {
      return fields.wrong(key, fmt::format("a token id below {} or a list of them", vocab_size));
    }
    ids.push_back(static_cast<std::uint32_t>(number));
  }
  return ids;
}

Result<void> parse_sizes(const Fields& fields, ModelConfig& config) {
  WEFT_TRY(config.vocab_size, fields.count("vocab_size"));
  WEFT_TRY(config.hidden_size, fields.count("hidden_size"));
  WEFT_TRY(config.intermediate_size, fields.count("intermediate_size"));
  WEFT_TRY(config.num_layers, fields.count("num_hidden_layers", kMaxLayers));
  WEFT_TRY(config.max_position_embeddings, fields.count("max_position_embeddings"));
  WEFT_TRY(config.rms_norm_eps, fields.positive_or("rms_norm_eps", 1e-6));
  WEFT_TRY(config.tie_word_embeddings, fields.flag_or("tie_word_embeddings", false));
  return {};
}

}  // namespace

Result<ModelConfig> ModelConfig::parse(std::string_view config_json) {
  WEFT_TRY(const json::value root, parse_json(config_json));
  if (!root.is_object()) return Error(ErrorCode::kInvalidArgument, "must be a JSON object");
  const Fields fields(root.get_object(), "");
  ModelConfig config;
  WEFT_TRY(config.architecture, parse_architecture(fields));
  WEFT_TRY_VOID(refuse_other_maths(fields));
  WEFT_TRY_VOID(parse_sizes(fields, config));
  WEFT_TRY_VOID(parse_heads(fields, config));
  WEFT_TRY_VOID(parse_biases(fields, config));
  WEFT_TRY(config.rope, parse_rope(fields, config.max_position_embeddings));
  WEFT_TRY_VOID(parse_sliding_window(fields, config));
  WEFT_TRY_VOID(parse_dtype(fields, config));
  WEFT_TRY(config.eos_token_ids, parse_token_ids(fields, "eos_token_id", config.vocab_size));
  WEFT_TRY(const auto bos, parse_token_ids(fields, "bos_token_id", config.vocab_size));
  if (!bos.empty()) config.bos_token_id = bos.front();
  return config;
}

Result<std::vector<std::uint32_t>> parse_end_tokens(std::string_view generation_config_json,
                                                    std::uint64_t vocab_size) {
  WEFT_TRY(const json::value root, parse_json(generation_config_json));
  if (!root.is_object()) return Error(ErrorCode::kInvalidArgument, "must be a JSON object");
  return parse_token_ids(Fields(root.get_object(), ""), "eos_token_id", vocab_size);
}

}  // namespace weft
