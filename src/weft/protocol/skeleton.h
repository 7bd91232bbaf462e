#pragma once
// What an upload announces: tensor names, dtypes and shapes, held against the model that is served.
// Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// The two tensors that are one under a tied config.
inline constexpr std::string_view kHeadName = "lm_head.weight";
inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";

// The name in canonical coordinates: without what training wrappers add. `module.` (DDP) goes from
// the front, `_orig_mod.` (torch.compile), `_fsdp_wrapped_module.` (FSDP) and
// `_checkpoint_wrapped_module.` (activation checkpointing) from anywhere.
std::string canonical_name(std::string_view name);

// May a version have a file of this name? No slash, no dot in front, no control character.
bool is_plain_file_name(std::string_view name);
// Of all files of a version together.
inline constexpr std::uint64_t kMaxFilesBytes = 64ull << 20;

struct PlannedTensor {
  TensorSpec spec;  // as it is sent, under its canonical name
  // Where it goes in the layout; nothing: a tied lm_head.weight, which must equal the embedding.
  std::optional<std::size_t> target;
  bool convert = false;  // the layout has another float dtype
};

struct UploadPlan {
  std::vector<PlannedTensor> tensors;  // in the order of the offer
  bool converted = false;              // some tensor is
};

// Holds what is offered against a model: every tensor of `layout` once, with its shape and a float
// dtype where they are floats, nothing else. With `tied`, lm_head.weight may come too, as a twin of
// the embedding. Errors: kInvalidArgument with the names (at most ten, then a count) and what was
// expected.
Result<UploadPlan> plan_upload(const WeightLayout& layout, std::span<const TensorSpec> offered,
                               bool tied);

}  // namespace weft
