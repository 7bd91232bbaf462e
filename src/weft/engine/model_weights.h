#pragma once
// A weight set by the roles that its tensors have in the forward pass. Immutable.

#include <memory>
#include <vector>

#include "weft/base/result.h"
#include "weft/kernels/weights.h"
#include "weft/model/config.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// A linear layer: weight [outputs, inputs], bias [outputs] or none.
struct LinearWeights {
  kernels::Weights weight;
  kernels::Weights bias;
  std::size_t outputs = 0;
};

struct LayerWeights {
  kernels::Weights input_norm;  // [hidden]
  LinearWeights q, k, v, o;
  kernels::Weights q_norm, k_norm;       // [head_dim], Qwen3 only
  kernels::Weights post_attention_norm;  // [hidden]
  LinearWeights gate, up, down;
};

struct ModelWeights {
  std::shared_ptr<const WeightSet> set;  // keeps what the views point to
  kernels::Weights embedding;            // [vocab, hidden]
  std::vector<LayerWeights> layers;
  kernels::Weights norm;  // [hidden]
  LinearWeights lm_head;  // the embedding where they are tied

  // Errors: kInvalidArgument naming the tensor that is missing, of another shape, or not BF16, F16
  // or F32.
  static Result<ModelWeights> bind(const ModelConfig& config, std::shared_ptr<const WeightSet> set);
};

}  // namespace weft
