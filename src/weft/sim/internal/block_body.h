#pragma once
// One body of blocks on its connection to a receiver: what BlockWriter is in transfer. One thread.

#include <memory>
#include <vector>

#include "weft/sim/internal/receiver.h"

namespace weft::sim {

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
  std::vector<std::byte> payload_;
  std::optional<BlockClaim> claim_;
  bool writing_ = false;
  PushMachine::Counts counts_;
};

}  // namespace weft::sim
