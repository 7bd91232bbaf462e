// A delta's decoder answers any payload with a block or an error, inside its memory; the patch and
// the block say the same; any pair of blocks comes back. The first byte chooses the kind of
// elements and what is tried, the second how many elements.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "weft/base/check.h"
#include "weft/codec/delta_codec.h"
#include "weft/digest/digest.h"

namespace {

using Bytes = std::vector<std::byte>;
using weft::ElemKind;

// All exponents occur in it, small ones often.
Bytes base_of(std::size_t size_bytes) {
  Bytes base(size_bytes);
  std::uint32_t x = 1;
  for (std::byte& b : base) {
    x = x * 1664525 + 1013904223;
    b = static_cast<std::byte>((x >> 24) & (x >> 16));
  }
  return base;
}

void try_decode(std::span<const std::byte> payload, std::size_t block_bytes, ElemKind kind) {
  const Bytes base = base_of(block_bytes);
  Bytes block(block_bytes);
  const auto decoded = weft::decode_delta(payload, base, kind, block);
  const auto patch = weft::resolve_delta(payload, base, kind);
  WEFT_CHECK(bool{decoded} == bool{patch});
  if (!patch) return;
  const weft::SparsePatch view = patch->view(kind);
  Bytes in_place = base;
  Bytes undo;
  WEFT_CHECK(bool{weft::check_sparse_base(view, in_place)});
  weft::apply_sparse(view, in_place, &undo);
  WEFT_CHECK(in_place == block);
}

// The fuzzer cannot guess a digest, nor what must be in the header: the payload with both right.
Bytes with_frame(std::span<const std::byte> payload, std::size_t elements, ElemKind kind) {
  Bytes out(payload.begin(), payload.end());
  out.resize(std::max(out.size(), weft::kDeltaHeaderBytes));
  out[0] = std::byte{1};
  out[1] = static_cast<std::byte>(std::to_integer<unsigned>(out[1]) % 5);  // forms
  out[2] = static_cast<std::byte>(kind);
  out[3] = std::byte{0};
  const auto count = static_cast<std::uint32_t>(elements);
  std::memcpy(out.data() + 4, &count, sizeof(count));
  const auto digest = weft::digest_of(out);
  out.insert(out.end(), digest.bytes.begin(), digest.bytes.begin() + weft::kDeltaDigestBytes);
  return out;
}

void try_round_trip(std::span<const std::byte> changes, std::size_t block_bytes, ElemKind kind) {
  const Bytes base = base_of(block_bytes);
  Bytes next = base;
  for (std::size_t i = 0; i < std::min(changes.size(), block_bytes); ++i) next[i] ^= changes[i];
  for (const auto goal : {weft::DeltaGoal::kSmall, weft::DeltaGoal::kFast}) {
    Bytes block(block_bytes);
    const Bytes payload = weft::encode_delta(base, next, kind, goal);
    WEFT_CHECK(payload.size() <= block_bytes + weft::kDeltaFrameBytes);
    WEFT_CHECK(bool{weft::decode_delta(payload, base, kind, block)});
    WEFT_CHECK(block == next);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  constexpr unsigned kKinds = 10;
  const auto kind = static_cast<ElemKind>((data[0] & 15) % kKinds);
  const std::size_t elements = std::size_t{data[1]} * 3;
  const std::size_t block_bytes = elements * weft::elem_size_bytes(kind);
  const auto rest = std::as_bytes(std::span(data, size).subspan(2));
  switch (data[0] >> 4 & 3) {
    case 0:
      try_decode(rest, block_bytes, kind);
      break;
    case 1:
      try_round_trip(rest, block_bytes, kind);
      break;
    default:
      try_decode(with_frame(rest, elements, kind), block_bytes, kind);
  }
  return 0;
}
