#pragma once
// A second thread for the digest of what arrives: while one thread copies bytes from a socket, the
// helper hashes those that are there already, so that one connection is not bound by both.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "weft/digest/digest.h"

namespace weft {

class SharedBlockHasher;

// One thread, named `weft-hash`, for any number of SharedBlockHashers. Thread-safe. It must outlive
// them.
class HashHelper {
 public:
  HashHelper();
  HashHelper(const HashHelper&) = delete;
  HashHelper& operator=(const HashHelper&) = delete;
  ~HashHelper();

 private:
  friend class SharedBlockHasher;

  struct Piece {
    SharedBlockHasher* owner = nullptr;  // null: none
    std::size_t index = 0;

    bool operator==(const Piece&) const = default;
  };

  // Takes it if nothing waits; the helper is then the one to hash it, unless it is taken back.
  bool try_offer(const Piece& piece);
  // True: it was still waiting. False: it is hashed by now. Blocks for one piece at most.
  bool blocking_take_back(const Piece& piece);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  Piece waiting_, hashing_;  // written with mutex_ held
  bool stopping_ = false;
  std::thread thread_;
};

// The value of one block, whose bytes come in order into one place in memory and stay there as they
// are until this is destroyed. Of what comes, the helper hashes what it can and the caller the rest
// at once, while it is in the cache. One thread.
class SharedBlockHasher {
 public:
  // Block `block` of a tensor of `tensor_size_bytes`, as of BlockHasher; `bytes`: where it will be.
  // `helper` must outlive this.
  SharedBlockHasher(HashHelper& helper, std::uint64_t tensor_size_bytes, std::uint64_t block,
                    std::span<const std::byte> bytes);
  SharedBlockHasher(const SharedBlockHasher&) = delete;
  SharedBlockHasher& operator=(const SharedBlockHasher&) = delete;
  ~SharedBlockHasher();

  // `size_bytes` more are there.
  void arrived(std::size_t size_bytes);
  // Requires: all are there.
  Digest finish();

 private:
  friend class HashHelper;
  // A subtree each. Small enough that a piece is in the cache when it is hashed by its caller, and
  // large enough that handing one over costs nothing beside hashing it.
  static constexpr std::size_t kPieceBytes = 1u << 20;

  void hash(std::size_t index);

  HashHelper& helper_;
  const std::uint64_t offset_bytes_;  // of the block in its tensor
  const bool is_root_;
  const std::span<const std::byte> bytes_;
  std::size_t arrived_bytes_ = 0;
  std::size_t next_ = 0;              // the first piece that nobody has
  std::vector<Digest> values_;        // of the pieces
  std::vector<std::size_t> offered_;  // to the helper
};

}  // namespace weft
