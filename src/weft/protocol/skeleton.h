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
#include "weft/digest/digest.h"
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

// A file as an upload announces it: "config.json".
struct OfferedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
};

// What an upload is opened with. Its *entries* are the tensors, then the files: frames name them by
// their index in that order.
struct UploadOffer {
  std::vector<TensorSpec> tensors;
  std::vector<OfferedFile> files;
  std::vector<std::vector<Digest>> blocks;  // [entries]; a list is empty or complete
  std::optional<std::string> base;          // id of the version that sparse blocks refer to
  bool partial = false;                     // tensors that are not listed are the base's
  bool replace = false;                     // drops another upload of this owner's
  Digest skeleton;                          // of all of the above but `replace`
};

struct PlannedTensor {
  TensorSpec spec;  // as it is sent, under its canonical name
  // Where it goes in the layout; nothing: a tied lm_head.weight, which must equal the embedding.
  std::optional<std::size_t> target;
  bool convert = false;  // the layout has another float dtype
};

// What becomes of an upload's entries: the tensors, then the files, then the tensors that the
// layout has and the upload leaves as the base has them.
struct UploadPlan {
  std::vector<PlannedTensor> tensors;      // in the order of the offer
  std::vector<OfferedFile> files;          // in the order of the offer
  std::vector<std::size_t> kept;           // of the layout, by its order
  std::vector<std::uint64_t> sizes_bytes;  // [entries]
  bool converted = false;                  // some tensor is

  std::size_t offered() const { return tensors.size() + files.size(); }
  std::optional<std::size_t> try_file(std::uint64_t entry) const;
  // Where a tensor goes in the layout; nothing for a file and a tied lm_head.weight.
  std::optional<std::size_t> try_target(std::uint64_t entry) const;
  // For messages.
  const std::string& name(std::uint64_t entry, const WeightLayout& layout) const;
};

// Holds what is offered against a model: every tensor of `layout` once, with its shape and a float
// dtype where they are floats, nothing else. With `tied`, lm_head.weight may come too, as a twin of
// the embedding. Errors: kInvalidArgument with the names (at most ten, then a count) and what was
// expected.
Result<UploadPlan> plan_upload(const WeightLayout& layout, std::span<const TensorSpec> offered,
                               bool tied);
// The same of a whole offer, files included; with offer.partial tensors may be missing. Errors,
// too: kInvalidArgument for a list of digests that does not fit its entry, a file name that is not
// plain or comes twice; kTooLarge for files over kMaxFilesBytes.
Result<UploadPlan> plan_offer(const WeightLayout& layout, const UploadOffer& offer, bool tied);

}  // namespace weft
