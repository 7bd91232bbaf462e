#include "weft/transfer/internal/pull_fetch.h"

#include <algorithm>
#include <cstring>

#include "weft/protocol/block_ledger.h"

namespace weft::internal {

FetchSink::FetchSink(const PullMachine::Fetch& fetch, PullMachine& machine, PullTarget& target,
                     HashHelper& helper, std::unique_lock<std::mutex>& lock)
    : fetch_(fetch),
      machine_(machine),
      target_(target),
      helper_(helper),
      lock_(lock),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(kBlockBytes)) {}

std::uint64_t FetchSink::entry_bytes(const BlockPlace& place) const {
  return machine_.entries()[place.entry].size_bytes;  // constant by now
}

Result<std::span<std::byte>> FetchSink::buffer() {
  if (is_complete()) return std::span<std::byte>();
  if (done_bytes_ == 0) {
    const auto& [place, offset, size, is_whole] = piece();
    place_ = target_.place(place.entry, place.block * kBlockBytes + offset,
                           std::span(scratch_.get(), static_cast<std::size_t>(size)));
    hasher_.reset();
    if (is_whole) hasher_.emplace(helper_, entry_bytes(place), place.block, place_);
  }
  return place_.subspan(static_cast<std::size_t>(done_bytes_));
}

Result<void> FetchSink::filled(std::size_t size) {
  done_bytes_ += size;
  if (hasher_) hasher_->arrived(size);
  if (done_bytes_ < piece().size_bytes) return {};
  auto settled = blocking_settle();
  if (!settled) error_ = settled.error();
  ++next_;
  done_bytes_ = 0;
  return settled;
}

Result<void> FetchSink::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    WEFT_TRY(const std::span<std::byte> into, buffer());
    if (into.empty()) break;
    const std::size_t size = std::min(bytes.size(), into.size());
    std::memcpy(into.data(), bytes.data(), size);
    WEFT_TRY_VOID(filled(size));
    bytes = bytes.subspan(size);
  }
  return {};
}

// The piece is there. Whoever brings a block's last part checks it.
Result<void> FetchSink::blocking_settle() {
  const PullMachine::Piece& done = piece();
  const BlockPlace& place = done.place;
  WEFT_TRY_VOID(
      target_.blocking_write(place.entry, place.block * kBlockBytes + done.offset_bytes, place_));
  lock_.lock();
  const bool is_last = machine_.arrived(done);
  lock_.unlock();
  if (!is_last) return {};
  Digest digest;
  if (hasher_) {
    digest = hasher_->finish();
  } else {
    WEFT_TRY(digest, blocking_digest(place));
  }
  lock_.lock();
  machine_.checked(place, digest);
  lock_.unlock();
  return {};
}

Result<Digest> FetchSink::blocking_digest(const BlockPlace& place) const {
  const std::uint64_t size_bytes = entry_bytes(place);
  const auto length = static_cast<std::size_t>(block_length(size_bytes, place.block));
  WEFT_TRY(const auto bytes, target_.blocking_read(place.entry, place.block * kBlockBytes,
                                                   std::span(scratch_.get(), length)));
  return block_digest(size_bytes, place.block, bytes);
}

}  // namespace weft::internal
