#include "weft/transfer/internal/block_fill.h"

#include <algorithm>
#include <cstring>

#include "weft/kernels/convert.h"
#include "weft/protocol/block_ledger.h"

namespace weft::internal {
namespace {

// Read and hashed in one go, so that the hash finds the bytes in the cache.
constexpr std::uint64_t kPieceBytes = 1 << 20;
constexpr std::uint64_t kBounceBytes = 256 << 10;

}  // namespace

BlockFill::BlockFill(HashHelper& helper, DType from, DType to, std::uint64_t size_bytes,
                     std::uint64_t block, Mode mode, std::span<std::byte> memory)
    : mode_(mode), from_(from), to_(to), left_bytes_(block_length(size_bytes, block)) {
  if (mode == Mode::kStore) {
    const std::uint64_t first_elem = block * kBlockBytes / dtype_size_bytes(from_);
    memory_ = memory.subspan(static_cast<std::size_t>(first_elem * dtype_size_bytes(to_)));
  }
  if (is_direct()) {
    shared_.emplace(helper, size_bytes, block,
                    memory_.first(static_cast<std::size_t>(left_bytes_)));
  } else {
    hasher_.emplace(size_bytes, block);
  }
}

std::span<std::byte> BlockFill::buffer() {
  const auto wanted = static_cast<std::size_t>(std::min(left_bytes_, kPieceBytes));
  if (is_direct()) return memory_.first(wanted);
  if (bounce_.empty()) bounce_.resize(kBounceBytes);
  const auto free = std::span(bounce_).subspan(carried_bytes_);
  return free.first(std::min(wanted, free.size()));
}

void BlockFill::filled(std::size_t size_bytes) {
  const auto piece = buffer().first(size_bytes);
  left_bytes_ -= size_bytes;
  if (is_direct()) {
    shared_->arrived(size_bytes);
    memory_ = memory_.subspan(size_bytes);
    return;
  }
  hasher_->update(piece);
  if (mode_ == Mode::kStore) {
    carried_bytes_ += size_bytes;
    convert_carried();
  }
}

void BlockFill::convert_carried() {
  const std::size_t elems = carried_bytes_ / dtype_size_bytes(from_);
  const auto from = std::span(bounce_).first(elems * dtype_size_bytes(from_));
  const auto to = memory_.first(elems * dtype_size_bytes(to_));
  kernels::convert(from, from_, to, to_);
  memory_ = memory_.subspan(to.size());
  carried_bytes_ -= from.size();
  std::memmove(bounce_.data(), bounce_.data() + from.size(), carried_bytes_);
}

}  // namespace weft::internal
