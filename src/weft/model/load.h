#pragma once
// A Hugging Face model folder made ready to serve: config, weights, tokenizer, templates.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/checkpoint/model_files.h"
#include "weft/model/config.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// What a model's small files say.
struct ModelDescription {
  ModelConfig config;  // with the eos_token_ids below, so that an engine made from it ends by them
  std::string tokenizer_json;        // "" where there is none
  std::string chat_template;         // chat_template.jinja, else tokenizer_config.json's, else ""
  std::string bos_token, eos_token;  // of tokenizer_config.json, for templates
  std::vector<std::uint32_t> eos_token_ids;  // of generation_config.json, else of config.json
};

// Errors: as ModelConfig, naming the file.
Result<ModelDescription> parse_model_files(const ModelFiles& files);

// A folder made ready to serve.
struct Checkpoint : ModelDescription {
  ModelFiles files;
  std::shared_ptr<const WeightLayout> layout;
  std::shared_ptr<WeightSet> weights;
  bool converted = false;  // --dtype asked for another type than stored, or FP64 became FP32
};

// Reads everything; weights straight into one allocated set. `dtype` converts float tensors
// (nothing: as stored). Tensors under a tied config named lm_head.weight are accepted only if equal
// to the embedding, and dropped. Blocks. Errors: as CheckpointFiles and ModelConfig;
// kInvalidArgument naming file, tensor, and what was expected: missing, unknown, wrong shape, a
// dtype that is no float.
Result<Checkpoint> blocking_load_checkpoint(const std::filesystem::path& folder,
                                            std::optional<DType> dtype);

// What config.json of a folder says, with generation_config.json's end tokens. Blocks. Errors: as
// blocking_load_checkpoint.
Result<ModelConfig> blocking_load_config(const std::filesystem::path& folder);

// Checks what a push says it will send against a model: for each tensor of `layout`, is it there,
// of that shape, and a float? `tied` allows a redundant lm_head.weight. Errors: kInvalidArgument
// with the names (at most ten, then a count) and what was expected.
Result<void> check_tensors(const WeightLayout& layout, std::span<const TensorSpec> offered,
                           bool tied);

}  // namespace weft
