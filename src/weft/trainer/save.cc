#include "weft/trainer/save.h"

#include <system_error>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/format/safetensors.h"
#include "weft/trainer/tasks.h"

namespace weft {

namespace {

boost::json::object model_config(const ModelSection& model, std::string_view architecture) {
  const std::uint64_t heads = model.hidden_size / model.head_dim;
  // Integers and text only, save rms_norm_eps and rope_theta, whose values are exact as written.
  return {{"architectures", boost::json::array{architecture}},
          {"model_type", "llama"},
          {"vocab_size", Vocabulary::kCharacters.size()},
          {"hidden_size", model.hidden_size},
          {"intermediate_size", model.intermediate_size},
          {"num_hidden_layers", model.num_layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", heads},
          {"head_dim", model.head_dim},
          {"max_position_embeddings", model.max_position_embeddings},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", nullptr},
          {"eos_token_id", Vocabulary::kEnd},
          {"pad_token_id", Vocabulary::kPadding}};
}

}  // namespace

std::string model_config_json(const ModelSection& model) {
  return boost::json::serialize(model_config(model, "LlamaForCausalLM")) + "\n";
}

std::string reward_model_config_json(const ModelSection& model) {
  boost::json::object root = model_config(model, "LlamaForSequenceClassification");
  root["id2label"] = {{"0", "LABEL_0"}};
  root["label2id"] = {{"LABEL_0", 0}};
  return boost::json::serialize(root) + "\n";
}

std::vector<TensorView> tensor_views(const WeightSet& weights) {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < weights.layout().tensors().size(); ++i) {
    views.push_back({weights.layout().tensors()[i], weights.tensor(i)});
  }
  return views;
}

Result<void> blocking_save_model(const std::filesystem::path& folder,
                                 const std::string& config_json, const WeightSet& weights) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Error(ErrorCode::kForbidden,
                 fmt::format("{}: cannot make the folder: {}", folder.string(), error.message()));
  }
  // transformers refuses files without the format's name.
  WEFT_TRY(const std::string header,
           make_safetensors_header(weights.layout().tensors(), {{"format", "pt"}}));
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header))};
  for (const TensorView& view : tensor_views(weights)) parts.push_back(view.data);
  WEFT_TRY_VOID(blocking_write_file(folder / "model.safetensors", parts));
  WEFT_TRY_VOID(blocking_write_file(folder / "config.json", config_json));
  const boost::json::value generation = {{"eos_token_id", Vocabulary::kEnd},
                                         {"pad_token_id", Vocabulary::kPadding}};
  WEFT_TRY_VOID(blocking_write_file(folder / "generation_config.json",
                                    boost::json::serialize(generation) + "\n"));
  WEFT_TRY_VOID(blocking_write_file(folder / "tokenizer.json", Vocabulary::tokenizer_json()));
  return blocking_write_file(folder / "tokenizer_config.json", Vocabulary::tokenizer_config_json());
}

}  // namespace weft
