#include "weft/model/config.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "weft/model/same_maths.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// A config with `more` members added at the end: `, "key": value`.
std::string config_with(std::string_view more, std::string_view type = "llama",
                        std::string_view name = "LlamaForCausalLM") {
  return fmt::format(R"({{"architectures": ["{}"], "model_type": "{}", "vocab_size": 272,
    "hidden_size": 576, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 512, "rms_norm_eps": 1e-5{}}})",
                     name, type, more);
}
ModelConfig parsed(std::string_view more) {
  return ModelConfig::parse(config_with(more)).value();
}
Error refused(std::string_view more) {
  return ModelConfig::parse(config_with(more)).error();
}
ModelConfig parsed_qwen3(std::string_view more) {
  return ModelConfig::parse(config_with(more, "qwen3", "Qwen3ForCausalLM")).value();
}

TEST(ModelConfig, ReadsWhatSavePretrainedWrites) {
  const auto config = parsed(
      R"(, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "float32",
         "eos_token_id": [2, 3], "bos_token_id": 1, "tie_word_embeddings": true, "pad_token_id": null,
         "hidden_act": "silu", "attention_dropout": 0.0, "pretraining_tp": 1, "use_cache": true)");
  EXPECT_EQ(config.head_dim, 64u);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(config.bos_token_id, 1u);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.qk_norm);
}

TEST(ModelConfig, KnowsItsFamiliesByClassOrType) {
  const auto qwen2 = ModelConfig::parse(config_with("", "qwen2", "Qwen2ForCausalLM")).value();
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_TRUE(parsed_qwen3("").qk_norm);
  EXPECT_TRUE(parsed(R"(, "attention_bias": true)").output_bias);
  const auto wrong = ModelConfig::parse(config_with("", "mixtral", "MixtralForCausalLM"));
  EXPECT_EQ(wrong.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(wrong.error().message(), HasSubstr("MixtralForCausalLM"));
  EXPECT_THAT(ModelConfig::parse(config_with("", "qwen2")).error().message(),
              HasSubstr("model_type"));
  EXPECT_EQ(ModelConfig::parse("{}").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ModelConfig::parse("[]").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ModelConfig::parse("{").error().code(), ErrorCode::kInvalidArgument);
}

TEST(ModelConfig, RefusesByNameWhatChangesTheMaths) {
  const std::pair<const char*, const char*> cases[] = {
      {"num_experts", "8"},
      {"num_local_experts", "8"},
      {"quantization_config", R"({"quant_method": "fp8"})"},
      {"hidden_act", R"("gelu")"},
      {"partial_rotary_factor", "0.5"},
      {"attention_chunk_size", "8192"},
      {"embedding_multiplier", "12.0"},
      {"final_logit_softcapping", "30.0"},
      {"sliding_window", "4096"},
      {"layer_types", R"(["chunked_attention", "full_attention"])"},
      {"rope_scaling", R"({"rope_type": "longrope", "factor": 4})"},
      {"rope_scaling", R"({"type": "mrope", "mrope_section": [1, 2]})"},
      {"is_causal", "false"},
      {"dual_chunk_attention_config", R"({"chunk_size": 262144})"},
      {"use_mrope", "true"},
      {"pruned_heads", R"({"0": [1]})"},
      {"partial_rotary_factor", "0.25"},
  };
  for (const auto& [key, value] : cases) {
    const Error error = refused(fmt::format(R"(, "{}": {})", key, value));
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << key;
    const std::string name = key;
    EXPECT_THAT(error.message(), HasSubstr(name.starts_with("rope") ? "rope" : "`" + name + "`"));
  }
  EXPECT_THAT(
      refused(R"(, "rope_parameters": {"full_attention": {"rope_type": "linear"}})").message(),
      HasSubstr("full_attention"));
  EXPECT_THAT(refused(R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4},
                          "original_max_position_embeddings": 64)")
                  .message(),
              HasSubstr("original_max_position_embeddings"));
}

TEST(ModelConfig, WhatIsAbsentIsWhatTheFamilysClassInTransformersSays) {
  const auto qwen3 = ModelConfig::parse(R"({"model_type": "qwen3", "vocab_size": 10,
    "hidden_size": 576, "intermediate_size": 16, "num_hidden_layers": 30,
    "num_attention_heads": 64, "max_position_embeddings": 512, "use_sliding_window": true})")
                         .value();
  EXPECT_EQ(qwen3.head_dim, 128u);
  EXPECT_EQ(qwen3.num_kv_heads, 32u);
  EXPECT_EQ(qwen3.sliding_window, 4096u);
  EXPECT_EQ(std::ranges::count(qwen3.sliding_layers, true), 2);
  for (const char* const more : {"", R"(, "num_key_value_heads": null)"}) {
    const auto llama = ModelConfig::parse(fmt::format(
        R"({{"model_type": "llama", "vocab_size": 10, "hidden_size": 576, "intermediate_size": 16,
            "num_hidden_layers": 1, "num_attention_heads": 9, "max_position_embeddings": 512{}}})",
        more));
    EXPECT_EQ(llama.value().num_kv_heads, 9u);
    EXPECT_EQ(llama.value().head_dim, 64u);
  }
}

TEST(ModelConfig, IgnoresTheSameKeysWhereTheyAreNeutral) {
  for (const char* const more :
       {R"(, "num_experts": 0)", R"(, "quantization_config": null)", R"(, "hidden_act": "swish")",
        R"(, "partial_rotary_factor": 1.0)", R"(, "embedding_multiplier": 1.0)",
        R"(, "sliding_window": null)", R"(, "layer_types": ["full_attention", "full_attention"])",
        R"(, "rope_scaling": null)", R"(, "some_new_key": {"a": 1})", R"(, "is_causal": true)",
        R"(, "original_max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn",
            "factor": 4, "original_max_position_embeddings": 64})"}) {
    EXPECT_TRUE(ModelConfig::parse(config_with(more)).has_value()) << more;
  }
}

TEST(ModelConfig, EqualSpellingsOfRopeMeanTheSame) {
  EXPECT_EQ(parsed("").rope.theta, 10000);
  for (const char* const more :
       {R"(, "rope_theta": 1000000)",
        R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0})",
        R"(, "rope_parameters": {"rope_theta": 1000000})",
        R"(, "rope_theta": 1000000, "rope_parameters": {"rope_theta": 1000000})",
        R"(, "rope_theta": 5, "rope_parameters": {"rope_theta": 1000000})",
        R"(, "rope_theta": 1000000, "rope_scaling": null, "rope_parameters": {})"}) {
    EXPECT_EQ(parsed(more).rope.theta, 1e6) << more;
    EXPECT_EQ(parsed(more).rope.kind, RopeConfig::Kind::kDefault) << more;
  }
  for (const char* const key : {"type", "rope_type"}) {
    const auto linear =
        parsed(fmt::format(R"(, "rope_scaling": {{"{}": "linear", "factor": 2}})", key));
    EXPECT_EQ(linear.rope.kind, RopeConfig::Kind::kLinear);
    EXPECT_EQ(linear.rope.factor, 2);
  }
}

TEST(ModelConfig, ReadsEveryKindOfRope) {
  const auto llama3 = parsed(R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  EXPECT_EQ(llama3.rope.kind, RopeConfig::Kind::kLlama3);
  EXPECT_EQ(llama3.rope.original_max_position_embeddings, 8192);
  const auto yarn = parsed(R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0})");
  EXPECT_EQ(yarn.rope.original_max_position_embeddings, 512);
  EXPECT_NEAR(yarn.rope.attention_factor, 1.1386, 1e-4);
  EXPECT_EQ(parsed(R"(, "rope_scaling": {"type": "dynamic", "factor": 2.0})").rope.kind,
            RopeConfig::Kind::kDynamic);
  EXPECT_EQ(refused(R"(, "rope_scaling": {"rope_type": "linear"})").code(),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused(R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8})").message(),
              HasSubstr("rope_scaling.low_freq_factor"));
}

TEST(ModelConfig, HeadDimIsWhatTheConfigSays) {
  EXPECT_EQ(parsed(R"(, "head_dim": null)").head_dim, 64u);
  EXPECT_EQ(parsed(R"(, "head_dim": 128)").head_dim, 128u);
  std::string odd = config_with(R"(, "head_dim": 64)");
  odd.replace(odd.find("576"), 3, "560");
  EXPECT_EQ(ModelConfig::parse(odd).value().head_dim, 64u);
  std::string underspecified = config_with("");
  underspecified.replace(underspecified.find("576"), 3, "560");
  EXPECT_THAT(ModelConfig::parse(underspecified).error().message(), HasSubstr("head_dim"));
}

TEST(ModelConfig, DtypeIsAHintInAnySpelling) {
  EXPECT_EQ(parsed(R"(, "torch_dtype": "float16")").dtype, DType::kF16);
  EXPECT_EQ(parsed(R"(, "dtype": "bfloat16", "torch_dtype": "float32")").dtype, DType::kBF16);
  EXPECT_EQ(parsed(R"(, "dtype": "auto")").dtype, std::nullopt);
  EXPECT_EQ(parsed(R"(, "torch_dtype": null)").dtype, std::nullopt);
  EXPECT_EQ(refused(R"(, "dtype": "int8")").code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(R"(, "dtype": 5)").code(), ErrorCode::kInvalidArgument);
}

TEST(ModelConfig, WindowsByLayerTypesOrFromALayerOn) {
  EXPECT_EQ(parsed_qwen3(R"(, "sliding_window": 4096)").sliding_window, std::nullopt);
  const auto by_type = parsed_qwen3(R"(, "use_sliding_window": true, "sliding_window": 8,
                        "layer_types": ["sliding_attention", "full_attention"])");
  EXPECT_EQ(by_type.sliding_window, 8u);
  EXPECT_EQ(by_type.sliding_layers, (std::vector<bool>{true, false}));
  const auto by_number =
      parsed_qwen3(R"(, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1)");
  EXPECT_EQ(by_number.sliding_layers, (std::vector<bool>{false, true}));
  EXPECT_THAT(
      ModelConfig::parse(config_with(R"(, "layer_types": ["sliding_attention", "full_attention"])",
                                     "qwen3", "Qwen3ForCausalLM"))
          .error()
          .message(),
      HasSubstr("sliding_window"));
}

TEST(ModelConfig, NamesAKeyThatIsMissingOrOfTheWrongKind) {
  const std::string good = config_with("");
  for (const char* const key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings"}) {
    std::string renamed = good;
    renamed.insert(renamed.find(key), "x_");
    const auto missing = ModelConfig::parse(renamed);
    EXPECT_EQ(missing.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(missing.error().message(), HasSubstr(key));
  }
  for (const char* const value : {"-1", "0", "1.5", R"("576")", "99999999999", "1e300", "true"}) {
    std::string bad = good;
    bad.replace(bad.find("576"), 3, value);
    EXPECT_THAT(ModelConfig::parse(bad).error().message(), HasSubstr("hidden_size")) << value;
  }
  EXPECT_THAT(refused(R"(, "head_dim": 63)").message(), HasSubstr("head_dim"));
  EXPECT_THAT(refused(R"(, "eos_token_id": 272)").message(), HasSubstr("eos_token_id"));
  EXPECT_THAT(refused(R"(, "rope_theta": -1)").message(), HasSubstr("rope_theta"));
  EXPECT_THAT(refused(R"(, "tie_word_embeddings": "no")").message(),
              HasSubstr("tie_word_embeddings"));
}

TEST(ExpectedTensors, AreThoseOfTheFamily) {
  const auto has = [](const ModelConfig& config, std::string_view name) {
    const auto tensors = expected_tensors(config);
    return std::ranges::find(tensors, name, &TensorSpec::name) != tensors.end();
  };
  EXPECT_EQ(expected_tensors(parsed("")).size(), 2 * 9 + 3u);
  EXPECT_FALSE(has(parsed(R"(, "tie_word_embeddings": true)"), "lm_head.weight"));
  EXPECT_TRUE(has(parsed(R"(, "mlp_bias": true)"), "model.layers.1.mlp.down_proj.bias"));
  EXPECT_TRUE(has(parsed_qwen3(""), "model.layers.0.self_attn.q_norm.weight"));
  const auto tensors = expected_tensors(parsed(R"(, "head_dim": 128)"));
  const auto k_proj =
      std::ranges::find(tensors, "model.layers.0.self_attn.k_proj.weight", &TensorSpec::name);
  EXPECT_EQ(k_proj->shape, (Shape{384, 576}));
  EXPECT_EQ(k_proj->dtype, DType::kBF16);
}

TEST(GenerationConfig, GivesItsEndTokensAndNothingElse) {
  EXPECT_EQ(
      parse_end_tokens(R"({"temperature": 0.1, "top_k": 1, "eos_token_id": [5, 6]})", 10).value(),
      (std::vector<std::uint32_t>{5, 6}));
  EXPECT_TRUE(parse_end_tokens(R"({"repetition_penalty": 1.05})", 10).value().empty());
  EXPECT_FALSE(parse_end_tokens(R"({"eos_token_id": "x"})", 10).has_value());
}

TEST(CheckSameMaths, NamesTheKeyAndBothValues) {
  const auto with = [](const std::string& more) {
    return ModelConfig::parse(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 10,
      "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
      "max_position_embeddings": 32)" +
                              more + "}")
        .value();
  };
  const ModelConfig served = with("");
  for (const char* const same :
       {"", R"(, "rope_theta": 10000)", R"(, "torch_dtype": "float32")", R"(, "eos_token_id": 3)",
        R"(, "num_key_value_heads": 2)", R"(, "rope_scaling": null)", R"(, "use_cache": false)"}) {
    EXPECT_TRUE(check_same_maths(served, with(same))) << same;
  }
  for (const auto& [more, key, value] : std::initializer_list<std::array<const char*, 3>>{
           {R"(, "rope_theta": 500000)", "`rope_theta` is 10000", "500000"},
           {R"(, "rms_norm_eps": 1e-5)", "`rms_norm_eps` is 1e-06", "1e-05"},
           {R"(, "tie_word_embeddings": true)", "`tie_word_embeddings` is false", "true"},
           {R"(, "num_key_value_heads": 1)", "`num_key_value_heads` is 2", "1"},
           {R"(, "rope_scaling": {"rope_type": "linear", "factor": 2})", "`rope_type` is default",
            "linear"}}) {
    const auto checked = check_same_maths(served, with(more));
    ASSERT_FALSE(checked) << more;
    EXPECT_EQ(checked.error().code(), ErrorCode::kConflict);
    EXPECT_NE(checked.error().message().find(key), std::string::npos) << checked.error().message();
    EXPECT_NE(checked.error().message().find(value), std::string::npos);
  }
}

}  // namespace
}  // namespace weft
