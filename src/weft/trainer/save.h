#pragma once
// Model folders in the layout that transformers, vLLM and `weft serve` read.

#include <filesystem>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/weight_set.h"
#include "weft/trainer/config.h"

namespace weft {

// config.json of the model that is trained: Llama's architecture, one key-value head for each head,
// tied embeddings, the vocabulary of trainer/tasks.h.
std::string model_config_json(const ModelSection& model);
// The same with a scalar head for one score: LlamaForSequenceClassification.
std::string reward_model_config_json(const ModelSection& model);

// The tensors of `weights` in the layout's order. `weights` must outlive them.
std::vector<TensorView> tensor_views(const WeightSet& weights);

// Writes config.json, generation_config.json, model.safetensors, tokenizer.json and
// tokenizer_config.json, each whole or not at all; makes the folder. Blocks. Errors: those of
// blocking_write_file.
Result<void> blocking_save_model(const std::filesystem::path& folder,
                                 const std::string& config_json, const WeightSet& weights);

}  // namespace weft
