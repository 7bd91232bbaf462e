#include "weft/protocol/block_frame.h"

#include <algorithm>

namespace weft {
namespace {

void put(std::span<std::byte> out, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint32_t get(std::span<const std::byte> in) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(in[i]) << (8 * i);
  return value;
}

}  // namespace

std::array<std::byte, kBlockFrameBytes> encode_block_frame(const BlockFrame& frame) {
  std::array<std::byte, kBlockFrameBytes> bytes{};
  const std::span out(bytes);
  put(out, frame.tensor);
  put(out.subspan(4), frame.block);
  put(out.subspan(8), frame.length_bytes);
  put(out.subspan(12), frame.encoding);
  std::ranges::copy(frame.digest.bytes, out.subspan(16).begin());
  return bytes;
}

BlockFrame parse_block_frame(std::span<const std::byte, kBlockFrameBytes> bytes) {
  BlockFrame frame;
  frame.tensor = get(bytes);
  frame.block = get(bytes.subspan(4));
  frame.length_bytes = get(bytes.subspan(8));
  frame.encoding = get(bytes.subspan(12));
  std::ranges::copy(bytes.subspan(16), frame.digest.bytes.begin());
  return frame;
}

}  // namespace weft
