#pragma once
// The encodings of a block on the wire: docs/protocol.md, "Encodings". Pure. A decoder accepts any
// bytes: it gives the right block or an error, within the memory and time that the block's size
// says.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "weft/base/result.h"

namespace weft {

// The fourth word of a block frame.
enum class Encoding : std::uint32_t {
  kIdentity = 0,
  kZstd = 1,    // one zstd frame (RFC 8878) with its content size
  kSparse = 2,  // positions and new values of what differs from the same block of a base version
  kDelta = 3,   // the same in as few bytes as may be: delta_codec.h
};
inline constexpr std::size_t kEncodings = 4;
// Of something, by Encoding.
using BytesByEncoding = std::array<std::uint64_t, kEncodings>;

// Is a payload nothing without the same block of the base?
constexpr bool needs_base(Encoding encoding) {
  return encoding == Encoding::kSparse || encoding == Encoding::kDelta;
}
// What frames of an upload may have, by number.
std::vector<Encoding> encodings_taken(bool with_base);
std::string_view encoding_name(Encoding encoding);
// Errors: kInvalidArgument naming the number.
Result<Encoding> parse_encoding(std::uint32_t word);

// The longest payload that may stand for a block of `block_bytes`: identity's is exactly that, the
// others are at most a little longer.
std::uint64_t max_payload_bytes(Encoding encoding, std::uint64_t block_bytes);

std::vector<std::byte> encode_zstd(std::span<const std::byte> block, int level = 1);
// Fills all of `block`. Errors: kCorrupt.
Result<void> decode_zstd(std::span<const std::byte> payload, std::span<std::byte> block);

// The sparse payload, little-endian:
//   0   u32 count   4  u32 zero
//   8   32 bytes: BLAKE3 of the old values in the order of their positions
//   40  count x u32: indices of elements in the block, strictly ascending
//       count x elem_bytes: the new values
//       32 bytes: BLAKE3 of everything before
// `base` and `next` are blocks of equal size, a multiple of `elem_bytes` (1, 2, 4 or 8).
std::vector<std::byte> encode_sparse(std::span<const std::byte> base,
                                     std::span<const std::byte> next, std::size_t elem_bytes);

// A parsed sparse payload: views into it. Positions are checked: ascending and inside the block.
struct SparsePatch {
  std::size_t elem_bytes = 0;
  std::size_t count = 0;
  std::span<const std::byte> old_values_digest;  // 32 bytes
  std::span<const std::byte> positions;          // u32 little-endian, maybe unaligned
  std::span<const std::byte> values;

  std::uint32_t position(std::size_t i) const;
};
// Errors: kCorrupt naming the rule that is broken.
Result<SparsePatch> parse_sparse(std::span<const std::byte> payload, std::uint64_t block_bytes,
                                 std::size_t elem_bytes);
// Is `base` what the patch was made against, as far as it replaces it? Time in proportion to the
// changes. Errors: kConflict.
Result<void> check_sparse_base(const SparsePatch& patch, std::span<const std::byte> base);
// Writes the new values over `block` (a copy of the base, or the base itself); `undo`, where given,
// gets the old values in order (count * elem_bytes).
void apply_sparse(const SparsePatch& patch, std::span<std::byte> block,
                  std::vector<std::byte>* undo = nullptr);

}  // namespace weft
