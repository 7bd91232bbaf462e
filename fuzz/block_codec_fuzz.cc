// A decoder answers any payload with a block or an error, inside its memory; what parses as sparse
// applies and is undone exactly. The first byte chooses the decoder, the second the block's size.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "weft/base/check.h"
#include "weft/codec/block_codec.h"
#include "weft/digest/digest.h"

namespace {

using Bytes = std::vector<std::byte>;

void try_sparse(std::span<const std::byte> payload, std::size_t block_bytes,
                std::size_t elem_bytes) {
  const auto patch = weft::parse_sparse(payload, block_bytes, elem_bytes);
  if (!patch) return;
  const Bytes base(block_bytes, std::byte{3});
  static_cast<void>(weft::check_sparse_base(*patch, base));
  Bytes block = base;
  Bytes undo;
  weft::apply_sparse(*patch, block, &undo);
  for (std::size_t i = 0; i < patch->count; ++i) {
    std::memcpy(block.data() + patch->position(i) * elem_bytes, undo.data() + i * elem_bytes,
                elem_bytes);
  }
  WEFT_CHECK(block == base);
}

// The fuzzer cannot guess a digest: the payload as if it ended with the right one.
Bytes with_digest(std::span<const std::byte> payload) {
  Bytes out(payload.begin(), payload.end());
  const auto digest = weft::digest_of(payload);
  out.insert(out.end(), digest.bytes.begin(), digest.bytes.end());
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t elem_bytes = std::size_t{1} << (data[0] & 3);
  const std::size_t block_bytes = std::size_t{data[1]} * 8;
  const auto payload = std::as_bytes(std::span(data, size).subspan(2));
  if ((data[0] & 4) == 0) {
    Bytes block(block_bytes);
    static_cast<void>(weft::decode_zstd(payload, block));
  } else if ((data[0] & 8) == 0) {
    try_sparse(payload, block_bytes, elem_bytes);
  } else {
    try_sparse(with_digest(payload), block_bytes, elem_bytes);
  }
  return 0;
}
