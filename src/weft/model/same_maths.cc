#include "weft/model/same_maths.h"

#include <array>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace weft {
namespace {

std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(std::uint64_t value) {
  return std::to_string(value);
}
std::string text_of(double value) {
  return fmt::format("{}", value);
}
std::string text_of(Architecture value) {
  constexpr std::array<std::string_view, 3> kNames = {"llama", "qwen2", "qwen3"};
  return std::string(kNames.at(static_cast<std::size_t>(value)));
}
std::string text_of(RopeConfig::Kind value) {
  constexpr std::array<std::string_view, 5> kNames = {"default", "linear", "dynamic", "llama3",
                                                      "yarn"};
  return std::string(kNames.at(static_cast<std::size_t>(value)));
}
std::string text_of(const std::optional<std::uint64_t>& value) {
  return value ? text_of(*value) : "null";
}
std::string text_of(const std::vector<bool>& sliding) {
  std::string text;
  for (const bool one : sliding) text += one ? 's' : 'f';
  return text;
}

// A key as config.json spells it, and what it says once defaults are filled in.
struct Key {
  std::string_view name;
  std::string (*text)(const ModelConfig&);
};
constexpr auto kKeys = std::to_array<Key>({
    {"model_type", [](const ModelConfig& c) { return text_of(c.architecture); }},
    {"vocab_size", [](const ModelConfig& c) { return text_of(c.vocab_size); }},
    {"hidden_size", [](const ModelConfig& c) { return text_of(c.hidden_size); }},
    {"intermediate_size", [](const ModelConfig& c) { return text_of(c.intermediate_size); }},
    {"num_hidden_layers", [](const ModelConfig& c) { return text_of(c.num_layers); }},
    {"num_attention_heads", [](const ModelConfig& c) { return text_of(c.num_heads); }},
    {"num_key_value_heads", [](const ModelConfig& c) { return text_of(c.num_kv_heads); }},
    {"head_dim", [](const ModelConfig& c) { return text_of(c.head_dim); }},
    {"rms_norm_eps", [](const ModelConfig& c) { return text_of(c.rms_norm_eps); }},
    {"tie_word_embeddings", [](const ModelConfig& c) { return text_of(c.tie_word_embeddings); }},
    {"attention_bias", [](const ModelConfig& c) { return text_of(c.qkv_bias); }},
    {"mlp_bias", [](const ModelConfig& c) { return text_of(c.mlp_bias); }},
    {"sliding_window", [](const ModelConfig& c) { return text_of(c.sliding_window); }},
    {"layer_types", [](const ModelConfig& c) { return text_of(c.sliding_layers); }},
    {"rope_theta", [](const ModelConfig& c) { return text_of(c.rope.theta); }},
    {"rope_type", [](const ModelConfig& c) { return text_of(c.rope.kind); }},
    {"factor", [](const ModelConfig& c) { return text_of(c.rope.factor); }},
    {"low_freq_factor", [](const ModelConfig& c) { return text_of(c.rope.low_freq_factor); }},
    {"high_freq_factor", [](const ModelConfig& c) { return text_of(c.rope.high_freq_factor); }},
    {"original_max_position_embeddings",
     [](const ModelConfig& c) { return text_of(c.rope.original_max_position_embeddings); }},
    {"beta_fast", [](const ModelConfig& c) { return text_of(c.rope.beta_fast); }},
    {"beta_slow", [](const ModelConfig& c) { return text_of(c.rope.beta_slow); }},
    {"attention_factor", [](const ModelConfig& c) { return text_of(c.rope.attention_factor); }},
});

}  // namespace

std::optional<MathsDifference> try_find_difference(const ModelConfig& first,
                                                   const ModelConfig& second) {
  for (const Key& key : kKeys) {
    MathsDifference difference{key.name, key.text(first), key.text(second)};
    if (difference.first != difference.second) return difference;
  }
  return std::nullopt;
}

Result<void> check_same_maths(const ModelConfig& served, const ModelConfig& offered) {
  const auto difference = try_find_difference(served, offered);
  if (!difference) return {};
  return Error(ErrorCode::kConflict,
               fmt::format("config.json: `{}` is {} in what is served and {} in what was sent, "
                           "and it changes the maths",
                           difference->key, difference->first, difference->second));
}

}  // namespace weft
