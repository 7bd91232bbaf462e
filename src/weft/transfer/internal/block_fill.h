#pragma once
// BlockFill: takes the bytes of one block in order, hashes them as they come, and puts them where
// they belong. One thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/digest/digest.h"
#include "weft/protocol/skeleton.h"

namespace weft::internal {

class BlockFill {
 public:
  // What becomes of the bytes.
  enum class Mode {
    kStore,    // into `memory`, converted where the plan says so
    kHash,     // nowhere: only their digest counts (a tied lm_head.weight)
    kDiscard,  // nowhere, and not hashed: the block is there or another writer's
  };
  // `memory` is the tensor's in the staging set, of dtype `stored` (kStore only); must outlive
  // this.
  BlockFill(const PlannedTensor& tensor, std::uint64_t size_bytes, std::uint64_t block, Mode mode,
            std::span<std::byte> memory, DType stored);

  // Where the next bytes go; empty when all are there.
  std::span<std::byte> buffer();
  // `size_bytes` came to the front of the last buffer().
  void filled(std::size_t size_bytes);
  std::uint64_t left_bytes() const { return left_bytes_; }
  // Requires: nothing is left, and the mode is not kDiscard.
  Digest digest() const { return hasher_.finish(); }

 private:
  bool is_direct() const { return mode_ == Mode::kStore && from_ == to_; }
  void convert_carried();

  Mode mode_;
  DType from_, to_;
  std::span<std::byte> memory_;    // what is left of the block's place
  std::vector<std::byte> bounce_;  // takes what cannot go straight to its place
  std::size_t carried_bytes_ = 0;  // of an element that came in part, at the front of bounce_
  std::uint64_t left_bytes_;
  BlockHasher hasher_;
};

}  // namespace weft::internal
