#pragma once
// BlockLedger: which blocks of an upload are there. A block is open, filling (one writer) or
// verified, and a verified one is never written again. Pure. One thread.

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/digest/digest.h"

namespace weft {

// The length in bytes of block `block` of a tensor. Requires: the tensor has that block.
std::uint64_t block_length(std::uint64_t tensor_size_bytes, std::uint64_t block);
// The bytes of block `block` of an entry.
template <typename Byte>
std::span<Byte> block_of(std::span<Byte> entry, std::uint64_t block) {
  return entry.subspan(static_cast<std::size_t>(block * kBlockBytes),
                       static_cast<std::size_t>(block_length(entry.size(), block)));
}

// Where a block is: the index of its entry in the upload or manifest, and its own in the entry.
struct BlockPlace {
  std::uint64_t entry = 0;
  std::uint64_t block = 0;

  // clang-tidy 14 takes the default for a null pointer.
  auto operator<=>(const BlockPlace&) const = default;  // NOLINT(modernize-use-nullptr)
};

class BlockLedger {
 public:
  // Sizes in bytes of the tensors, in the upload's order. All blocks are open.
  explicit BlockLedger(std::span<const std::uint64_t> tensor_sizes_bytes);

  enum class Claim {
    kYours,     // it was open and is filling: settle it with verified() or failed()
    kFilling,   // another writer has it
    kVerified,  // it is there
    kNone,      // there is no such tensor or block
  };
  Claim claim(std::uint64_t tensor, std::uint64_t block);
  // Requires: claimed, and not settled yet.
  void verified(std::uint64_t tensor, std::uint64_t block, const Digest& digest);
  void failed(std::uint64_t tensor, std::uint64_t block);

  // Blocks that are not verified, filling ones included, as runs in order.
  struct Run {
    std::uint64_t tensor, first_block, blocks;
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> missing() const;
  std::uint64_t missing_blocks() const { return missing_blocks_; }
  std::uint64_t verified_bytes() const { return verified_bytes_; }
  std::uint64_t total_bytes() const { return total_bytes_; }

  std::size_t tensors() const { return tensors_.size(); }
  // The values of a tensor's blocks. Requires: all are verified.
  std::span<const Digest> digests(std::uint64_t tensor) const {
    return tensors_.at(tensor).digests;
  }

 private:
  enum class State : std::uint8_t { kOpen, kFilling, kVerified };
  struct Tensor {
    std::uint64_t size_bytes;
    std::vector<State> states;
    std::vector<Digest> digests;
  };

  State& filling(std::uint64_t tensor, std::uint64_t block);

  std::vector<Tensor> tensors_;
  std::uint64_t missing_blocks_ = 0;
  std::uint64_t verified_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace weft
