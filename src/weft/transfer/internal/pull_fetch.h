#pragma once
// The body of one fetch of a pull: from the socket to where it belongs, hashed on the way. One
// thread; what it shares with others is behind `lock`.

#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "weft/digest/hash_helper.h"
#include "weft/http/body.h"
#include "weft/protocol/pull_machine.h"
#include "weft/transfer/puller.h"

namespace weft::internal {

class FetchSink final : public http::BodySink {
 public:
  // All outlive this. `machine` is used with `lock` held, which is not held by the caller.
  FetchSink(const PullMachine::Fetch& fetch, PullMachine& machine, PullTarget& target,
            HashHelper& helper, std::unique_lock<std::mutex>& lock);

  Result<std::span<std::byte>> buffer() override;
  Result<void> filled(std::size_t size) override;
  void finish() override {}
  void abort(const Error&) override {}

  // For a body that is in memory already.
  Result<void> take(std::span<const std::byte> bytes);

  bool is_complete() const { return next_ == fetch_.pieces.size(); }
  // The target's, if one ended the body.
  const std::optional<Error>& error() const { return error_; }

 private:
  const PullMachine::Piece& piece() const { return fetch_.pieces[next_]; }
  Result<void> blocking_settle();
  // Of a block whose parts came apart.
  Result<Digest> blocking_digest(const BlockPlace& place) const;
  std::uint64_t entry_bytes(const BlockPlace& place) const;

  const PullMachine::Fetch& fetch_;
  PullMachine& machine_;
  PullTarget& target_;
  HashHelper& helper_;
  std::unique_lock<std::mutex>& lock_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t next_ = 0;                     // in fetch_.pieces
  std::uint64_t done_bytes_ = 0;             // of that piece
  std::span<std::byte> place_;               // of that piece
  std::optional<SharedBlockHasher> hasher_;  // of that piece, if it is a whole block
  std::optional<Error> error_;
};

}  // namespace weft::internal
