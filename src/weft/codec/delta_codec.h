#pragma once
// A block as what changed since the same block of a base: docs/formats/delta.md. Pure; the result
// depends on the arguments alone. A decoder accepts any bytes: it gives the right block or an
// error, within the memory and time that the block's size says.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/base/result.h"
#include "weft/codec/block_codec.h"
#include "weft/digest/digest.h"

namespace weft {

// What elements are, as far as it helps to tell how they change. Part of the format.
enum class ElemKind : std::uint8_t {
  kBits8 = 0,  // integers, truth values, or bytes of which nothing is known
  kBits16 = 1,
  kBits32 = 2,
  kBits64 = 3,
  kBF16 = 4,
  kF16 = 5,
  kF32 = 6,
  kF64 = 7,
  kF8E4M3 = 8,
  kF8E5M2 = 9,
};
std::size_t elem_size_bytes(ElemKind kind);

// How a payload stands for its block. Part of the format.
enum class DeltaForm : std::uint8_t {
  kIdentity = 0,  // the block
  kZstd = 1,      // the block in one zstd frame
  kDense = 2,     // base XOR block, its bytes in planes, in one zstd frame
  kSparse = 3,    // which elements change and by how much, entropy coded with the base's as context
  kPlain = 4,     // where elements change and what they become, as it is
};

// What an encoder is to aim at. Who reads need not know.
enum class DeltaGoal : std::uint8_t {
  kSmall,  // few bytes
  kFast,   // little work on both sides, where the link is no slower than some Gbit/s
};

// No block is longer.
inline constexpr std::size_t kMaxDeltaBlockBytes = std::size_t{1} << 30;
inline constexpr std::size_t kDeltaHeaderBytes = 28;
inline constexpr std::size_t kDeltaDigestBytes = 16;
// An empty delta's, and by how much a payload may be longer than its block.
inline constexpr std::size_t kDeltaFrameBytes = kDeltaHeaderBytes + kDeltaDigestBytes;

// The smallest form as far as estimates tell; for kFast the plain form where it makes of the block
// a quarter at most. `base` and `next`: equal sizes, a multiple of the
// element's. Memory beside the payload: in the worst case, all elements
// changed, the block's size and 14 bytes an element.
std::vector<std::byte> encode_delta(std::span<const std::byte> base,
                                    std::span<const std::byte> next, ElemKind kind,
                                    DeltaGoal goal = DeltaGoal::kSmall);

struct DeltaHeader {
  DeltaForm form = DeltaForm::kIdentity;
  std::uint32_t changed = 0;  // elements; 0 for the forms that do not need the base
};
// Checks all but what needs decoding: the payload's own digest too. Errors: kCorrupt naming the
// rule; kUnsupported for another version of the format.
Result<DeltaHeader> read_delta_header(std::span<const std::byte> payload, std::uint64_t block_bytes,
                                      ElemKind kind);

// Fills all of `block` from the same block of the base (another memory). After an error it holds
// anything. Memory: at most the block's size and 4 bytes an element. Errors: those of
// read_delta_header(); kConflict: `base` is not what the delta was made against.
Result<void> decode_delta(std::span<const std::byte> payload, std::span<const std::byte> base,
                          ElemKind kind, std::span<std::byte> block);

// A delta that can be written over the base in place, in time proportional to the changes.
struct DeltaPatch {
  std::vector<std::uint32_t> positions;  // of elements, ascending
  std::vector<std::byte> values;         // the new ones
  Digest old_values_digest;              // of those they replace, in order

  // For check_sparse_base() and apply_sparse(). Valid as long as the patch is not changed.
  SparsePatch view(ElemKind kind) const;
};
// Reads all of `base`, and checks the values that will be replaced. Errors: those of
// decode_delta(). Memory: of an identity or zstd payload the block too.
Result<DeltaPatch> resolve_delta(std::span<const std::byte> payload,
                                 std::span<const std::byte> base, ElemKind kind);
// The same of a block that is at hand. `base` and `next`: equal sizes, a multiple of `elem_bytes`,
// which is 1, 2, 4 or 8.
DeltaPatch find_patch(std::span<const std::byte> base, std::span<const std::byte> next,
                      std::size_t elem_bytes);

}  // namespace weft
