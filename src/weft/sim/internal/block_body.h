#pragma once
// One body of blocks on its connection to a receiver: what BlockWriter is in transfer. One thread.

#include <memory>
#include <span>
#include <vector>

#include "weft/sim/internal/receiver.h"

namespace weft::sim {

// What turns `base` into `next`, as `encoding` has it, which is one that needs a base; and back.
// Errors of the latter: those of the codec.
std::vector<std::byte> changes_between(Encoding encoding, const Cells& base, const Cells& next);
Result<Cells> with_changes(Encoding encoding, std::span<const std::byte> payload,
                           const Cells& base);

class Receiver::BlockBody : public Body {
 public:
  BlockBody(Receiver& receiver, std::shared_ptr<Staging> staging, std::vector<SentBlock> blocks)
      : receiver_(receiver), staging_(std::move(staging)), blocks_(std::move(blocks)) {}

  Result<void> take(std::size_t index, std::uint8_t flip) override;
  Result<PushMachine::Counts> finish() override { return counts_; }
  void cut() override { drop(); }

 private:
  Result<void> take_frame(const BlockFrame& sent, std::uint8_t flip);
  Result<void> take_payload(std::size_t begin, std::size_t end);
  Result<void> settle();
  Result<Cells> decoded() const;
  void drop();

  Receiver& receiver_;
  const std::shared_ptr<Staging> staging_;
  const std::vector<SentBlock> blocks_;
  BlockFrame frame_;
  Encoding encoding_ = Encoding::kIdentity;
  std::vector<std::byte> payload_;
  std::optional<BlockClaim> claim_;
  bool writing_ = false;
  PushMachine::Counts counts_;
};

}  // namespace weft::sim
