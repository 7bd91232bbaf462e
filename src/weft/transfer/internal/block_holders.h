#pragma once
// BlockHolders: which connection writes which block, and since when it has brought nothing. A
// connection whose sender is gone can stay half open for minutes; whoever sends the same block
// again ends it. Thread-safe; the time is given in.

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "weft/protocol/update_machine.h"

namespace weft::internal {

class BlockHolders {
 public:
  // A holder that was silent for so long gives way.
  static constexpr std::chrono::seconds kSilence{5};

  struct Block {
    Epoch epoch = 0;
    std::uint64_t entry = 0, block = 0;
    // clang-tidy 14 takes the default for a null pointer.
    auto operator<=>(const Block&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  // The block is claimed; `close` ends the connection that has it, from any thread.
  void hold(const Block& block, std::function<void()> close, Instant now);
  // Bytes came. Requires, as drop(): held.
  void touch(const Block& block, Instant now);
  // To be called before the claim is given up: the next one to claim the block holds it anew.
  void drop(const Block& block);
  // Another connection wants it: ends the holder's if that has been silent. The block opens when
  // the connection has ended.
  void want(const Block& block, Instant now);

 private:
  struct Holder {
    std::function<void()> close;
    Instant heard_at;
  };

  std::mutex mutex_;
  std::map<Block, Holder> holders_;
};

}  // namespace weft::internal
