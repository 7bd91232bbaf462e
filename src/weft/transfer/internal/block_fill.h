#pragma once
// BlockFill: takes the bytes of one block in order, hashes them as they come, and puts them where
// they belong. One thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "weft/digest/digest.h"
#include "weft/digest/hash_helper.h"
#include "weft/tensor/dtype.h"

namespace weft::internal {

class BlockFill {
 public:
  // What becomes of the bytes.
  enum class Mode {
    kStore,  // into `memory`, converted where the two dtypes differ
    kHash,   // nowhere: only their digest counts
  };
  // Block `block` of an entry of `size_bytes`, whose elements come as `from` and are stored as `to`
  // (kStore only) in `memory`, the entry's; it must outlive this, and so must `helper`.
  BlockFill(HashHelper& helper, DType from, DType to, std::uint64_t size_bytes, std::uint64_t block,
            Mode mode, std::span<std::byte> memory);

  // Where the next bytes go; empty when all are there.
  std::span<std::byte> buffer();
  // `size_bytes` came to the front of the last buffer().
  void filled(std::size_t size_bytes);
  std::uint64_t left_bytes() const { return left_bytes_; }
  // Requires: nothing is left.
  Digest digest() { return shared_ ? shared_->finish() : hasher_->finish(); }

 private:
  bool is_direct() const { return mode_ == Mode::kStore && from_ == to_; }
  void convert_carried();

  Mode mode_;
  DType from_, to_;
  std::span<std::byte> memory_;    // what is left of the block's place
  std::vector<std::byte> bounce_;  // takes what cannot go straight to its place
  std::size_t carried_bytes_ = 0;  // of an element that came in part, at the front of bounce_
  std::uint64_t left_bytes_;
  std::optional<SharedBlockHasher> shared_;  // of bytes that stay where they come to
  std::optional<BlockHasher> hasher_;        // of others
};

}  // namespace weft::internal
