#pragma once
// The frame in front of each block in a bulk body, and the names that both sides of the wire share.
// docs/protocol.md, "Blocks".

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "weft/base/result.h"
#include "weft/digest/digest.h"

namespace weft {

// Who owns an update; absent: kAnonymousOwner.
inline constexpr std::string_view kSessionHeader = "Weft-Session";
inline constexpr std::string_view kAnonymousOwner = "anonymous";
inline constexpr std::size_t kMaxSessionBytes = 256;
// A version's data, all entries' bytes one after the other in manifest order, is cut into packs of
// this size.
inline constexpr std::uint64_t kPackBytes = 64ull << 20;

// 48 bytes: tensor, block, length, encoding (each 32 bits, little-endian), then the digest of the
// block as it is when decoded.
struct BlockFrame {
  std::uint32_t tensor = 0;  // its index in the skeleton; files follow the tensors
  std::uint32_t block = 0;
  std::uint32_t length_bytes = 0;  // of the payload that follows
  std::uint32_t encoding = 0;      // of the payload: codec/block_codec.h
  Digest digest;

  bool operator==(const BlockFrame&) const = default;
};
inline constexpr std::size_t kBlockFrameBytes = 48;

std::array<std::byte, kBlockFrameBytes> encode_block_frame(const BlockFrame& frame);
BlockFrame parse_block_frame(std::span<const std::byte, kBlockFrameBytes> bytes);

}  // namespace weft
