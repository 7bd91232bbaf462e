#pragma once
// The index of a delta object: from which version to which, which blocks change, and the packs that
// hold them. docs/formats/delta-index.md has the bytes. Pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"

namespace weft {

// No pack is larger, and so no payload.
inline constexpr std::uint32_t kMaxDeltaPackBytes = 32u << 20;

struct DeltaPack {
  std::uint32_t size_bytes = 0;
  Digest digest;  // plain BLAKE3

  bool operator==(const DeltaPack&) const = default;
};

// A block that differs from the base's.
struct DeltaBlock {
  std::uint32_t entry = 0;  // of the target, in manifest order
  std::uint32_t block = 0;
  std::uint32_t payload_bytes = 0;
  Digest value;  // of the block in the target

  bool operator==(const DeltaBlock&) const = default;
};

// A value.
struct DeltaIndex {
  Digest base, target;  // ids of versions
  std::vector<DeltaPack> packs;
  std::vector<DeltaBlock> blocks;  // ascending by entry, then block

  bool operator==(const DeltaIndex&) const = default;
};

// Where payloads lie: one after the other, each in the pack before it if that has room.
class DeltaPackCut {
 public:
  struct Place {
    std::size_t pack = 0;
    std::uint32_t offset_bytes = 0;
  };
  // Of the next payload. Requires: at most kMaxDeltaPackBytes.
  Place add(std::uint32_t payload_bytes);
  // Up to and with the last one.
  std::size_t packs() const { return packs_; }

 private:
  std::size_t packs_ = 0;
  std::uint32_t used_bytes_ = 0;  // of the last pack
};
// [blocks]. Requires: the packs of the index are cut so, which all that were parsed are.
std::vector<DeltaPackCut::Place> delta_payload_places(const DeltaIndex& index);

// Of all packs.
std::uint64_t delta_payload_bytes(const DeltaIndex& index);

// How long the bytes of an index are.
std::uint64_t delta_index_bytes(std::size_t packs, std::size_t blocks);
// Requires: what parse_delta_index() checks.
std::string encode_delta_index(const DeltaIndex& index);
// Accepts exactly the bytes that encode_delta_index() writes. Memory: in proportion to `bytes`.
// Errors: kCorrupt naming the rule; kUnsupported for another version of the format.
Result<DeltaIndex> parse_delta_index(std::span<const std::byte> bytes);

}  // namespace weft
