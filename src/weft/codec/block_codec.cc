#include "weft/codec/block_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <fmt/core.h>
#include <zstd.h>

#include "weft/base/check.h"
#include "weft/codec/delta_codec.h"
#include "weft/codec/internal/load_store.h"
#include "weft/digest/digest.h"

namespace weft {
namespace {

constexpr std::size_t kDigestBytes = sizeof(Digest::bytes);
constexpr std::size_t kHeaderBytes = 8 + kDigestBytes;  // count, zero, digest of the old values
constexpr std::size_t kPositionBytes = sizeof(std::uint32_t);
constexpr std::size_t kSparseBytes = kHeaderBytes + kDigestBytes;  // of a payload without changes

using internal::load;
using internal::store;
using internal::with_element;

// Elements are compared in runs of this many bytes; most runs are equal.
constexpr std::size_t kRunBytes = 64;

bool equal_runs(const std::byte* a, const std::byte* b) {
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < kRunBytes; i += 8) {
    difference |= load<std::uint64_t>(a + i) ^ load<std::uint64_t>(b + i);
  }
  return difference == 0;
}

// The indices of the elements that differ.
template <typename T>
std::vector<std::uint32_t> changed_positions(std::span<const std::byte> base,
                                             std::span<const std::byte> next) {
  constexpr std::size_t kRunElements = kRunBytes / sizeof(T);
  const std::size_t elements = base.size() / sizeof(T);
  std::vector<std::uint32_t> positions;
  std::array<std::uint32_t, kRunElements> changed;
  for (std::size_t begin = 0; begin < elements; begin += kRunElements) {
    const std::byte* const a = base.data() + begin * sizeof(T);
    const std::byte* const b = next.data() + begin * sizeof(T);
    const std::size_t count = std::min(kRunElements, elements - begin);
    if (count == kRunElements && equal_runs(a, b)) continue;
    std::size_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {  // without branches: changes lie at random
      changed[found] = static_cast<std::uint32_t>(begin + i);
      found += load<T>(a + i * sizeof(T)) != load<T>(b + i * sizeof(T)) ? 1 : 0;
    }
    positions.insert(positions.end(), changed.begin(), changed.begin() + found);
  }
  return positions;
}

const std::byte* data_of(const std::vector<std::uint32_t>& positions) {
  return std::as_bytes(std::span(positions)).data();
}

// Positions ahead of the one at hand whose cache lines are asked for: memory answers in about as
// long as so many elements take. Source: measured, 8 to 64 are alike and save a third.
constexpr std::size_t kPrefetch = 16;

// Copies the elements of `block` at `positions` to `out`, one after the other.
template <typename T>
void gather(const std::byte* positions, std::size_t count, const std::byte* block, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t ahead = std::min(i + kPrefetch, count - 1);
    __builtin_prefetch(block + load<std::uint32_t>(positions + ahead * kPositionBytes) * sizeof(T));
    const std::size_t at = load<std::uint32_t>(positions + i * kPositionBytes) * sizeof(T);
    store(out + i * sizeof(T), load<T>(block + at));
  }
}

// Writes the new values; what was there goes to `undo`, where given.
template <typename T>
void scatter(const SparsePatch& patch, std::byte* block, std::byte* undo) {
  const std::byte* const positions = patch.positions.data();
  for (std::size_t i = 0; i < patch.count; ++i) {
    const std::size_t ahead = std::min(i + kPrefetch, patch.count - 1);
    __builtin_prefetch(block + load<std::uint32_t>(positions + ahead * kPositionBytes) * sizeof(T),
                       1);
    const std::size_t at = load<std::uint32_t>(positions + i * kPositionBytes) * sizeof(T);
    if (undo != nullptr) store(undo + i * sizeof(T), load<T>(block + at));
    store(block + at, load<T>(patch.values.data() + i * sizeof(T)));
  }
}

bool is_digest_of(std::span<const std::byte> digest, std::span<const std::byte> bytes) {
  return std::ranges::equal(digest, digest_of(bytes).bytes);
}

// Ascending and below `elements`.
bool are_in_order(std::span<const std::byte> positions, std::uint64_t elements) {
  std::uint64_t least = 0;
  for (std::size_t i = 0; i < positions.size(); i += kPositionBytes) {
    const std::uint64_t position = load<std::uint32_t>(positions.data() + i);
    if (position < least) return false;
    least = position + 1;
  }
  return least <= elements;
}

Error corrupt(std::string message) {
  return Error(ErrorCode::kCorrupt, std::move(message));
}

}  // namespace

std::string_view encoding_name(Encoding encoding) {
  switch (encoding) {
    case Encoding::kIdentity:
      return "identity";
    case Encoding::kZstd:
      return "zstd";
    case Encoding::kSparse:
      return "sparse";
    case Encoding::kDelta:
      return "delta";
  }
  return "unknown";
}

std::vector<Encoding> encodings_taken(bool with_base) {
  std::vector<Encoding> encodings;
  for (std::uint32_t word = 0; word < kEncodings; ++word) {
    const auto encoding = static_cast<Encoding>(word);
    if (with_base || !needs_base(encoding)) encodings.push_back(encoding);
  }
  return encodings;
}

Result<Encoding> parse_encoding(std::uint32_t word) {
  if (word >= kEncodings) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("a block's encoding is {}, expected 0 (identity), 1 (zstd), 2 "
                             "(sparse) or 3 (delta)",
                             word));
  }
  return static_cast<Encoding>(word);
}

std::uint64_t max_payload_bytes(Encoding encoding, std::uint64_t block_bytes) {
  switch (encoding) {
    case Encoding::kIdentity:
      break;
    case Encoding::kZstd:
      return ZSTD_compressBound(static_cast<std::size_t>(block_bytes));
    // A longer one would be worse than the block itself.
    case Encoding::kSparse:
      return block_bytes + kSparseBytes;
    case Encoding::kDelta:
      return block_bytes + kDeltaFrameBytes;
  }
  return block_bytes;
}

std::vector<std::byte> encode_zstd(std::span<const std::byte> block, int level) {
  std::vector<std::byte> payload(ZSTD_compressBound(block.size()));
  const std::size_t size_bytes =
      ZSTD_compress(payload.data(), payload.size(), block.data(), block.size(), level);
  WEFT_CHECK(ZSTD_isError(size_bytes) == 0);  // the bound is zstd's own
  payload.resize(size_bytes);
  return payload;
}

Result<void> decode_zstd(std::span<const std::byte> payload, std::span<std::byte> block) {
  // Without the magic number it may be a skippable frame, or a format of zstd's past.
  if (payload.size() < 4 || load<std::uint32_t>(payload.data()) != ZSTD_MAGICNUMBER) {
    return corrupt("zstd: the payload does not begin with a frame");
  }
  if (ZSTD_findFrameCompressedSize(payload.data(), payload.size()) != payload.size()) {
    return corrupt("zstd: the payload is not exactly one frame");
  }
  // So nothing is decoded that would not fit; the one-shot decoder needs no window of its own.
  const unsigned long long content_bytes = ZSTD_getFrameContentSize(payload.data(), payload.size());
  if (content_bytes != block.size()) {
    return corrupt(content_bytes >= ZSTD_CONTENTSIZE_ERROR
                       ? "zstd: the frame does not say the size of its content"
                       : fmt::format("zstd: the frame holds {} bytes, the block has {}",
                                     content_bytes, block.size()));
  }
  const std::size_t decoded =
      ZSTD_decompress(block.data(), block.size(), payload.data(), payload.size());
  if (ZSTD_isError(decoded) != 0) {
    return corrupt(fmt::format("zstd: {}", ZSTD_getErrorName(decoded)));
  }
  if (decoded != block.size()) {
    return corrupt(fmt::format("zstd: {} bytes came out, expected {}", decoded, block.size()));
  }
  return {};
}

std::vector<std::byte> encode_sparse(std::span<const std::byte> base,
                                     std::span<const std::byte> next, std::size_t elem_bytes) {
  WEFT_CHECK(base.size() == next.size());
  WEFT_CHECK(base.size() <= std::numeric_limits<std::uint32_t>::max());
  return with_element(elem_bytes, [&]<typename T>(T) {
    WEFT_CHECK(base.size() % sizeof(T) == 0);
    const std::vector<std::uint32_t> positions = changed_positions<T>(base, next);
    const std::size_t count = positions.size();
    std::vector<std::byte> old(count * sizeof(T));
    gather<T>(data_of(positions), count, base.data(), old.data());

    std::vector<std::byte> payload(kSparseBytes + count * (kPositionBytes + sizeof(T)));
    store(payload.data(), static_cast<std::uint32_t>(count));
    std::ranges::copy(digest_of(old).bytes, payload.data() + 8);
    std::byte* const after =
        std::ranges::copy(std::as_bytes(std::span(positions)), payload.data() + kHeaderBytes).out;
    gather<T>(data_of(positions), count, next.data(), after);
    const auto covered = std::span(payload).first(payload.size() - kDigestBytes);
    std::ranges::copy(digest_of(covered).bytes, payload.data() + covered.size());
    return payload;
  });
}

std::uint32_t SparsePatch::position(std::size_t i) const {
  return load<std::uint32_t>(positions.subspan(i * kPositionBytes, kPositionBytes).data());
}

Result<SparsePatch> parse_sparse(std::span<const std::byte> payload, std::uint64_t block_bytes,
                                 std::size_t elem_bytes) {
  if (payload.size() < kSparseBytes) {
    return corrupt(
        fmt::format("sparse: {} bytes, expected at least {}", payload.size(), kSparseBytes));
  }
  const std::uint64_t count = load<std::uint32_t>(payload.data());
  const std::uint64_t elements = block_bytes / elem_bytes;
  if (count > elements) {
    return corrupt(fmt::format("sparse: {} positions in a block of {} elements", count, elements));
  }
  const std::uint64_t expected_bytes = kSparseBytes + count * (kPositionBytes + elem_bytes);
  if (payload.size() != expected_bytes) {
    return corrupt(fmt::format("sparse: {} bytes, expected {} for {} positions of {} bytes each",
                               payload.size(), expected_bytes, count, elem_bytes));
  }
  if (load<std::uint32_t>(payload.data() + 4) != 0) {
    return corrupt("sparse: the second word is not zero");
  }
  const auto covered = payload.first(payload.size() - kDigestBytes);
  if (!is_digest_of(payload.last(kDigestBytes), covered)) {
    return corrupt("sparse: the payload does not have the digest at its end");
  }
  SparsePatch patch;
  patch.elem_bytes = elem_bytes;
  patch.count = static_cast<std::size_t>(count);
  patch.old_values_digest = payload.subspan(8, kDigestBytes);
  patch.positions = payload.subspan(kHeaderBytes, patch.count * kPositionBytes);
  patch.values = payload.subspan(kHeaderBytes + patch.positions.size(), patch.count * elem_bytes);
  if (!are_in_order(patch.positions, elements)) {
    return corrupt(fmt::format("sparse: the positions do not ascend below {}", elements));
  }
  return patch;
}

Result<void> check_sparse_base(const SparsePatch& patch, std::span<const std::byte> base) {
  std::vector<std::byte> old(patch.values.size());
  with_element(patch.elem_bytes, [&]<typename T>(T) {
    gather<T>(patch.positions.data(), patch.count, base.data(), old.data());
  });
  if (!is_digest_of(patch.old_values_digest, old)) {
    return Error(ErrorCode::kConflict,
                 "sparse: the values to be replaced are not those that the patch was made against");
  }
  return {};
}

void apply_sparse(const SparsePatch& patch, std::span<std::byte> block,
                  std::vector<std::byte>* undo) {
  if (undo != nullptr) undo->resize(patch.values.size());
  std::byte* const old = undo == nullptr ? nullptr : undo->data();
  with_element(patch.elem_bytes, [&]<typename T>(T) { scatter<T>(patch, block.data(), old); });
}

}  // namespace weft
