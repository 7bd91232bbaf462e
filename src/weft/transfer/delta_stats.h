#pragma once
// How two versions differ, and how many bytes each encoding makes of it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/transfer/version_blocks.h"

namespace weft {

// Bytes of the payloads of blocks that change; those that do not need none.
struct DeltaCosts {
  std::uint64_t identity = 0;
  std::uint64_t zstd = 0;      // of the block, level 1
  std::uint64_t xor_zstd = 0;  // of base XOR block, level 1
  std::uint64_t sparse = 0;    // Encoding::kSparse; a block of an entry that the base lacks: itself
  std::uint64_t delta = 0;     // docs/formats/delta.md
};

struct DeltaEntryStats {
  std::size_t entry = 0;  // of the target, in manifest order
  std::uint64_t elements = 0,
                changed = 0;  // of a file: bytes. All, where the base has none like it
  DeltaCosts bytes;

  DeltaEntryStats& operator+=(const DeltaEntryStats& other);
};

// [entries of the target]. On `threads` threads; `progress` is called from the calling thread with
// the blocks that are done, out of all that change. Blocks. Errors: those of the versions.
Result<std::vector<DeltaEntryStats>> blocking_delta_stats(
    const VersionBlocks& base, const VersionBlocks& target, unsigned threads,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

}  // namespace weft
