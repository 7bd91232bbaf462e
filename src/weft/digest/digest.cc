#include "weft/digest/digest.h"

#include <bit>
#include <utility>

#include "weft/digest/internal/tree.h"
#include "weft_rust.h"

namespace weft {
namespace {

constexpr std::string_view kPrefix = "blake3:";
constexpr std::string_view kHexDigits = "0123456789abcdef";

const std::uint8_t* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}
std::uint8_t* data_of(Digest& digest) {
  return reinterpret_cast<std::uint8_t*>(digest.bytes.data());
}
WeftHasher* hasher_of(void* state) {
  return static_cast<WeftHasher*>(state);
}

Digest finished(void* state, bool is_root) {
  Digest digest;
  weft_hasher_finish(hasher_of(state), is_root, data_of(digest));
  return digest;
}

}  // namespace

namespace internal {

Digest subtree(std::uint64_t offset_bytes, std::span<const std::byte> bytes, bool is_root) {
  WeftHasher* const hasher = weft_hasher_new(offset_bytes);
  weft_hasher_update(hasher, data_of(bytes), bytes.size());
  const Digest digest = finished(hasher, is_root);
  weft_hasher_free(hasher);
  return digest;
}

// The left subtree is the largest power of two of them that leaves one for the right.
Digest merged(std::span<const Digest> subtrees, bool is_root) {
  if (subtrees.size() == 1) return subtrees.front();
  const std::size_t left_count = std::bit_floor(subtrees.size() - 1);
  const Digest left = merged(subtrees.first(left_count), false);
  const Digest right = merged(subtrees.subspan(left_count), false);
  Digest parent;
  weft_hasher_merge(data_of(left.bytes), data_of(right.bytes), is_root, data_of(parent));
  return parent;
}

}  // namespace internal

std::string digest_text(const Digest& digest) {
  std::string text(kPrefix);
  for (const std::byte byte : digest.bytes) {
    text += kHexDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kHexDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::optional<Digest> try_parse_digest(std::string_view text) {
  Digest digest;
  if (text.size() != kPrefix.size() + 2 * digest.bytes.size() || !text.starts_with(kPrefix)) {
    return std::nullopt;
  }
  text.remove_prefix(kPrefix.size());
  for (std::byte& byte : digest.bytes) {
    const std::size_t high = kHexDigits.find(text[0]);
    const std::size_t low = kHexDigits.find(text[1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    byte = static_cast<std::byte>(high << 4 | low);
    text.remove_prefix(2);
  }
  return digest;
}

Digest digest_of(std::span<const std::byte> bytes) {
  return internal::subtree(0, bytes, true);
}

Hasher::Hasher() : Hasher(0) {}
Hasher::Hasher(std::uint64_t offset_bytes) : state_(weft_hasher_new(offset_bytes)) {}
Hasher::Hasher(Hasher&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
Hasher& Hasher::operator=(Hasher&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Hasher::~Hasher() {
  weft_hasher_free(hasher_of(state_));
}

void Hasher::update(std::span<const std::byte> bytes) {
  weft_hasher_update(hasher_of(state_), data_of(bytes), bytes.size());
}

Digest Hasher::finish() const {
  return finished(state_, true);
}

BlockHasher::BlockHasher(std::uint64_t tensor_size_bytes, std::uint64_t block)
    : hasher_(block * kBlockBytes), is_root_(tensor_size_bytes <= kBlockBytes) {}

Digest BlockHasher::finish() const {
  return finished(hasher_.state_, is_root_);
}

Digest block_digest(std::uint64_t tensor_size_bytes, std::uint64_t block,
                    std::span<const std::byte> bytes) {
  return internal::subtree(block * kBlockBytes, bytes, tensor_size_bytes <= kBlockBytes);
}

Digest merge_block_digests(std::span<const Digest> blocks) {
  return blocks.empty() ? digest_of({}) : internal::merged(blocks, true);
}

}  // namespace weft
