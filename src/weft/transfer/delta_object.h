#pragma once
// What an index says of two versions, held against them. docs/formats/delta-index.md, "Rules".
// Pure.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/codec/delta_codec.h"
#include "weft/format/delta_index.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/version_content.h"

namespace weft {

// How the entries of a version meet those of its base. Immutable. Both contents must outlive it.
class DeltaPair {
 public:
  DeltaPair(const VersionContent& base, const VersionContent& target);

  const VersionContent& base() const { return *base_; }
  const VersionContent& target() const { return *target_; }

  // The base's entry of the same name, dtype and shape (a file's: size). Nothing: the blocks of
  // this one are deltas of zeros.
  std::optional<std::size_t> try_base_entry(std::size_t entry) const {
    return base_entries_[entry];
  }
  // Is the block another than the base's? Without a base's entry each is.
  bool is_changed(const BlockPlace& place) const;
  // All that are, in order.
  std::vector<BlockPlace> changed_blocks() const;

 private:
  const VersionContent* base_;
  const VersionContent* target_;
  std::vector<std::optional<std::size_t>> base_entries_;  // [entries of the target]
};

// Of a version's entry.
ElemKind delta_kind(const Manifest& manifest, std::size_t entry);
// "version blake3:...: tensor `w`, block 3".
std::string block_words(const VersionContent& content, const BlockPlace& place);

// Is it an index from this base to this target, with the blocks that change and no others, and with
// payloads that can be theirs? Errors: kConflict: it is from another base; kCorrupt naming version,
// tensor and block.
Result<void> check_delta_index(const DeltaPair& pair, const DeltaIndex& index);

// The content of a target, from the base's, the target's manifest and an index, which is checked as
// above. Memory: in proportion to the base's content and the index. Errors: those of
// check_delta_index(); kCorrupt also for another manifest than the target's.
Result<std::shared_ptr<const VersionContent>> delta_target(const VersionContent& base,
                                                           Manifest manifest,
                                                           const DeltaIndex& index);

}  // namespace weft
