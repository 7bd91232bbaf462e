#include "weft/digest/hash_helper.h"

#include <algorithm>
#include <utility>

#include <pthread.h>

#include "weft/digest/internal/tree.h"

namespace weft {

HashHelper::HashHelper() : thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "weft-hash");
}

HashHelper::~HashHelper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool HashHelper::try_offer(const Piece& piece) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.owner != nullptr) return false;
    waiting_ = piece;
  }
  changed_.notify_all();
  return true;
}

bool HashHelper::blocking_take_back(const Piece& piece) {
  std::unique_lock lock(mutex_);
  if (waiting_ == piece) {
    waiting_ = {};
    return true;
  }
  changed_.wait(lock, [&] { return hashing_ != piece; });
  return false;
}

void HashHelper::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || waiting_.owner != nullptr; });
    if (stopping_) return;
    hashing_ = std::exchange(waiting_, {});
    lock.unlock();
    hashing_.owner->hash(hashing_.index);
    lock.lock();
    hashing_ = {};
    changed_.notify_all();
  }
}

SharedBlockHasher::SharedBlockHasher(HashHelper& helper, std::uint64_t tensor_size_bytes,
                                     std::uint64_t block, std::span<const std::byte> bytes)
    : helper_(helper),
      offset_bytes_(block * kBlockBytes),
      is_root_(tensor_size_bytes <= kBlockBytes),
      bytes_(bytes),
      values_((bytes.size() + kPieceBytes - 1) / kPieceBytes) {
  offered_.reserve(values_.size());
}

SharedBlockHasher::~SharedBlockHasher() {
  for (const std::size_t index : offered_) helper_.blocking_take_back({this, index});
}

void SharedBlockHasher::arrived(std::size_t size_bytes) {
  arrived_bytes_ += size_bytes;
  const bool is_end = arrived_bytes_ == bytes_.size();
  const std::size_t complete = is_end ? values_.size() : arrived_bytes_ / kPieceBytes;
  for (; next_ < complete; ++next_) {
    // The last one is this thread's: it would only wait for it.
    if (next_ + 1 < values_.size() && helper_.try_offer({this, next_})) {
      offered_.push_back(next_);
    } else {
      hash(next_);
    }
  }
}

void SharedBlockHasher::hash(std::size_t index) {
  const std::size_t begin = index * kPieceBytes;
  const auto piece = bytes_.subspan(begin, std::min(kPieceBytes, bytes_.size() - begin));
  values_[index] = internal::subtree(offset_bytes_ + begin, piece, is_root_ && values_.size() == 1);
}

Digest SharedBlockHasher::finish() {
  // Last to first: what still waits is the last one offered.
  while (!offered_.empty()) {
    const std::size_t index = offered_.back();
    offered_.pop_back();
    if (helper_.blocking_take_back({this, index})) hash(index);
  }
  return internal::merged(values_, is_root_);
}

}  // namespace weft
