#pragma once
// What a version changes of another that is at hand, element by element, found while the delta
// between them is applied: for who writes the changes into a layout of their own.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/protocol/version_content.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/delta_puller.h"

namespace weft {

// The changed elements of one tensor.
struct TensorChanges {
  std::size_t tensor = 0;              // of the layout
  std::vector<std::int64_t> elements;  // flat, in C order, ascending
  std::vector<std::byte> values;       // the new ones, in the same order
};

struct VersionChanges {
  std::shared_ptr<const VersionContent> target;
  std::vector<TensorChanges> tensors;        // those with changes, in order
  std::map<std::string, std::string> files;  // of the target
};

// The most elements that are told one by one: a sixteenth of all. Each takes 8 bytes and itself.
inline constexpr std::uint64_t kMaxChangedShare = 16;

struct PulledChanges {
  std::optional<VersionChanges> changes;  // where it was done
  DeltaPull pull;                         // whose report is filled then; else why not
};

// Pulls version `id` as what it changes of `base`, whose tensors are `weights`: every block
// is held to its digest, nothing is written over. Memory: three blocks for each thread, and the
// changes. Blocks. Errors: kConflict where it has other tensors. That it cannot be had as deltas,
// or that more changes than is told one by one, is no error: `pull.why_not` says so.
Result<PulledChanges> blocking_pull_changes(http::Client& source, const std::string& id,
                                            const VersionBlocks& base, const WeightSet& weights,
                                            const DeltaPullOptions& options = {});

// Writes the changes over what they were made against.
void apply_changes(const VersionChanges& changes, WeightSet& weights);

}  // namespace weft
