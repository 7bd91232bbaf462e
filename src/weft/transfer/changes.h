#pragma once
// What a version changes of another that is at hand, element by element: for who writes the changes
// into a layout of their own.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/codec/delta_codec.h"
#include "weft/http/client.h"
#include "weft/protocol/version_content.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/delta_puller.h"

namespace weft {

struct BlockChanges {
  BlockPlace place;  // its entry is the tensor's index in the layout
  DeltaPatch patch;  // of at least one element
};

// The changed elements of one tensor. The changes must outlive it.
class TensorChanges {
 public:
  TensorChanges(const TensorSpec& spec, std::span<const BlockChanges> blocks)
      : spec_(&spec), blocks_(blocks) {}

  std::size_t tensor() const { return static_cast<std::size_t>(blocks_[0].place.entry); }
  std::size_t count() const;                   // of elements
  std::vector<std::int64_t> elements() const;  // flat, in C order, ascending
  std::vector<std::byte> values() const;       // the new ones, in the same order

  // `memory` below is the tensor, all of it, in C order.

  // Are the values that will be replaced those that they were made against? Errors: kConflict.
  Result<void> check(std::span<const std::byte> memory) const;
  // Writes the new values. Returns those that they replace, for undo().
  std::vector<std::byte> write(std::span<std::byte> memory) const;
  void undo(std::span<std::byte> memory, std::span<const std::byte> replaced) const;

 private:
  SparsePatch view(const BlockChanges& block) const;

  const TensorSpec* spec_;
  std::span<const BlockChanges> blocks_;
};

struct VersionChanges {
  std::shared_ptr<const VersionContent> target;
  std::vector<BlockChanges> blocks;          // in order
  std::map<std::string, std::string> files;  // of the target

  // Those with changes, in order.
  std::vector<TensorChanges> tensors() const;
};

// The most elements that are told one by one: a sixteenth of all. Each takes 4 bytes and itself.
inline constexpr std::uint64_t kMaxChangedShare = 16;

struct PulledChanges {
  std::optional<VersionChanges> changes;  // where it was done
  DeltaPull pull;                         // whose report is filled then; else why not
};

// Pulls version `id` as what it changes of `base`, whose tensors are `weights`; nothing is written
// over. Where one delta leads there, proven are its own digest and that of the values which it
// replaces, and blocking_verify_changes() proves the rest; where several do, each block is held to
// its digest. Memory: four blocks for each thread, and the changes. Blocks. Errors: kConflict where
// it has other tensors. That it cannot be had as deltas, or that more changes than is told one by
// one, is no error: `pull.why_not` says so.
Result<PulledChanges> blocking_pull_changes(http::Client& source, const std::string& id,
                                            const VersionBlocks& base, const WeightSet& weights,
                                            const DeltaPullOptions& options = {});

// Writes the changes over what they were made against.
void apply_changes(const VersionChanges& changes, WeightSet& weights);

// Holds every block that changes to its digest: as it will be or, if `applied`, as it is. Memory: a
// block for each thread. Blocks. Errors: kCorrupt naming version, tensor and block.
Result<void> blocking_verify_changes(const VersionChanges& changes, const WeightSet& weights,
                                     bool applied, unsigned threads);

}  // namespace weft
