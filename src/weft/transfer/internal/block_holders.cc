#include "weft/transfer/internal/block_holders.h"

#include <utility>

namespace weft::internal {

void BlockHolders::hold(const Block& block, std::function<void()> close, Instant now) {
  const std::lock_guard lock(mutex_);
  holders_.insert_or_assign(block, Holder{std::move(close), now});
}

void BlockHolders::touch(const Block& block, Instant now) {
  const std::lock_guard lock(mutex_);
  holders_.at(block).heard_at = now;
}

void BlockHolders::drop(const Block& block) {
  const std::lock_guard lock(mutex_);
  holders_.erase(block);
}

void BlockHolders::want(const Block& block, Instant now) {
  std::function<void()> close;
  {
    const std::lock_guard lock(mutex_);
    const auto holder = holders_.find(block);
    if (holder == holders_.end() || now - holder->second.heard_at < kSilence) return;
    close = holder->second.close;
  }
  close();
}

}  // namespace weft::internal
