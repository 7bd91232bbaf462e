#include "weft/protocol/block_ledger.h"

#include <algorithm>

#include "weft/base/check.h"

namespace weft {

std::uint64_t block_length(std::uint64_t tensor_size_bytes, std::uint64_t block) {
  WEFT_CHECK(block < block_count(tensor_size_bytes));
  return std::min(kBlockBytes, tensor_size_bytes - block * kBlockBytes);
}

BlockLedger::BlockLedger(std::span<const std::uint64_t> tensor_sizes_bytes) {
  tensors_.reserve(tensor_sizes_bytes.size());
  for (const std::uint64_t size_bytes : tensor_sizes_bytes) {
    const auto blocks = static_cast<std::size_t>(block_count(size_bytes));
    tensors_.push_back({size_bytes, std::vector<State>(blocks), std::vector<Digest>(blocks)});
    missing_blocks_ += blocks;
    total_bytes_ += size_bytes;
  }
}

BlockLedger::Claim BlockLedger::claim(std::uint64_t tensor, std::uint64_t block) {
  if (tensor >= tensors_.size() || block >= tensors_[tensor].states.size()) return Claim::kNone;
  State& state = tensors_[tensor].states[block];
  if (state == State::kVerified) return Claim::kVerified;
  if (state == State::kFilling) return Claim::kFilling;
  state = State::kFilling;
  return Claim::kYours;
}

void BlockLedger::verified(std::uint64_t tensor, std::uint64_t block, const Digest& digest) {
  filling(tensor, block) = State::kVerified;
  tensors_[tensor].digests[block] = digest;
  --missing_blocks_;
  verified_bytes_ += block_length(tensors_[tensor].size_bytes, block);
}

void BlockLedger::failed(std::uint64_t tensor, std::uint64_t block) {
  filling(tensor, block) = State::kOpen;
}

std::vector<BlockLedger::Run> BlockLedger::missing() const {
  std::vector<Run> runs;
  for (std::uint64_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const auto& states = tensors_[tensor].states;
    for (std::uint64_t block = 0; block < states.size(); ++block) {
      if (states[block] == State::kVerified) continue;
      const bool goes_on = !runs.empty() && runs.back().tensor == tensor &&
                           runs.back().first_block + runs.back().blocks == block;
      if (goes_on) {
        ++runs.back().blocks;
      } else {
        runs.push_back({tensor, block, 1});
      }
    }
  }
  return runs;
}

BlockLedger::State& BlockLedger::filling(std::uint64_t tensor, std::uint64_t block) {
  State& state = tensors_.at(tensor).states.at(block);
  WEFT_CHECK(state == State::kFilling);
  return state;
}

}  // namespace weft
