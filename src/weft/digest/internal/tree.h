#pragma once
// Subtrees of BLAKE3 and how they join. Source: the BLAKE3 paper, section 2.1.

#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/digest/digest.h"

namespace weft::internal {

// Of bytes that begin at `offset_bytes` of the whole; the whole's digest where they are all of it
// (`is_root`). Requires: not empty unless they are all of it.
Digest subtree(std::uint64_t offset_bytes, std::span<const std::byte> bytes, bool is_root);
// Of subtrees of one size, a power of two, that follow one another; the last one may be smaller.
// One alone is itself. Requires: at least one.
Digest merged(std::span<const Digest> subtrees, bool is_root);

}  // namespace weft::internal
