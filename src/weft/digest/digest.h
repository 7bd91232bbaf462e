#pragma once
// BLAKE3-256 digests, of whole byte strings and of the blocks of a tensor.
//
// BLAKE3 is a tree. A block is a power-of-two chunk of a tensor's bytes; its value is that of the
// subtree over it, and the values of a tensor's blocks merge into the tensor's plain BLAKE3, the
// one that b3sum prints. So one pass over the bytes serves both. Source: the BLAKE3 paper, section
// 2, and the `hazmat` module of the `blake3` crate.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// 32 bytes of BLAKE3. Written `blake3:` and 64 lower-case hex digits. A value.
struct Digest {
  std::array<std::byte, 32> bytes{};

  // clang-tidy 14 takes the default for a null pointer.
  auto operator<=>(const Digest&) const = default;  // NOLINT(modernize-use-nullptr)
};
std::string digest_text(const Digest& digest);
// Accepts exactly what digest_text writes.
std::optional<Digest> try_parse_digest(std::string_view text);

// The grid: every tensor is cut at multiples of this. Part of the protocol.
inline constexpr std::uint64_t kBlockBytes = 8ull << 20;

// The number of blocks of a tensor of `size_bytes`; an empty tensor has none.
constexpr std::uint64_t block_count(std::uint64_t size_bytes) {
  return size_bytes / kBlockBytes + (size_bytes % kBlockBytes != 0 ? 1 : 0);
}

// The plain BLAKE3 of `bytes`.
Digest digest_of(std::span<const std::byte> bytes);

// Plain BLAKE3, fed piece by piece. One thread.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  void update(std::span<const std::byte> bytes);
  Digest finish() const;

 private:
  friend class BlockHasher;
  // Of the subtree that begins at `offset_bytes` of the whole.
  explicit Hasher(std::uint64_t offset_bytes);

  void* state_;  // owned; the Rust library's hasher
};

// The value of one block, fed piece by piece. One thread.
class BlockHasher {
 public:
  // Block `block` of a tensor of `tensor_size_bytes`. The only block of a tensor has the tensor's
  // plain digest as its value; of several, each has its subtree's.
  BlockHasher(std::uint64_t tensor_size_bytes, std::uint64_t block);

  // Bytes of the block in order. Requires: no more of them than the block has.
  void update(std::span<const std::byte> bytes) { hasher_.update(bytes); }
  // Requires: all bytes of the block were fed.
  Digest finish() const;

 private:
  Hasher hasher_;
  bool is_root_;
};

Digest block_digest(std::uint64_t tensor_size_bytes, std::uint64_t block,
                    std::span<const std::byte> bytes);
// The plain digest of a tensor from the values of all its blocks, in order. For an empty tensor (no
// blocks), the digest of no bytes.
Digest merge_block_digests(std::span<const Digest> blocks);

}  // namespace weft
