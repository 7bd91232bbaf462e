#include "weft/sim/internal/block_body.h"

#include "weft/codec/delta_codec.h"

namespace weft::sim {
namespace {

using Use = BlockClaim::Use;
constexpr ElemKind kKind = ElemKind::kBF16;
constexpr std::uint64_t kChangeBytes = 6;  // a position and a value

Cells cells_of(std::span<const std::byte> bytes) {
  Cells cells{};
  for (std::size_t i = 0; i < cells.size() && i < bytes.size(); ++i) {
    cells[i] = std::to_integer<std::uint8_t>(bytes[i]);
  }
  return cells;
}

}  // namespace

std::vector<std::byte> changes_between(Encoding encoding, const Cells& base, const Cells& next) {
  const auto old_bytes = std::as_bytes(std::span(base)), bytes = std::as_bytes(std::span(next));
  return encoding == Encoding::kDelta ? encode_delta(old_bytes, bytes, kKind)
                                      : encode_sparse(old_bytes, bytes, elem_size_bytes(kKind));
}

Result<Cells> with_changes(Encoding encoding, std::span<const std::byte> payload,
                           const Cells& base) {
  Cells cells = base;
  const auto bytes = std::as_writable_bytes(std::span(cells));
  if (encoding == Encoding::kDelta) {
    WEFT_TRY_VOID(decode_delta(payload, std::as_bytes(std::span(base)), kKind, bytes));
    return cells;
  }
  WEFT_TRY(const SparsePatch patch, parse_sparse(payload, kBlockCells, elem_size_bytes(kKind)));
  WEFT_TRY_VOID(check_sparse_base(patch, bytes));
  apply_sparse(patch, bytes);
  return cells;
}

Result<void> Receiver::BlockBody::take(std::size_t index, std::uint8_t flip) {
  const SentBlock& sent = blocks_[index / kPiecesOfBlock];
  const std::size_t part = index % kPiecesOfBlock;
  const auto taken = [&]() -> Result<void> {
    if (part == 0) {
      payload_ = sent.payload;
      return take_frame(sent.frame, flip);
    }
    const std::size_t half = payload_.size() / 2;
    const std::size_t begin = part == 1 ? 0 : half;
    const std::size_t end = part == 1 ? half : payload_.size();
    payload_[begin + flip % (end - begin)] ^= std::byte{flip};
    WEFT_TRY_VOID(take_payload(begin, end));
    return part == 2 ? settle() : Result<void>();
  }();
  if (!taken) drop();
  return taken;
}

Result<void> Receiver::BlockBody::take_frame(const BlockFrame& sent, std::uint8_t flip) {
  auto bytes = encode_block_frame(sent);
  bytes[(flip * 5u) % bytes.size()] ^= std::byte{flip};
  frame_ = parse_block_frame(bytes);
  WEFT_TRY(encoding_, parse_encoding(frame_.encoding));
  if (frame_.length_bytes != payload_.size()) {
    return Error(ErrorCode::kInvalidArgument, "a frame of another length");
  }
  const auto form = needs_base(encoding_) ? FrameForm::kChanges : FrameForm::kWhole;
  if (encoding_ == Encoding::kZstd ||
      (form == FrameForm::kWhole && payload_.size() != kBlockCells)) {
    return Error(ErrorCode::kInvalidArgument, "a frame of another encoding");
  }
  WEFT_TRY(claim_, receiver_.machine_->claim(*staging_, {frame_.tensor, frame_.block}, form,
                                             payload_.size(), receiver_.now()));
  writing_ = claim_->found == BlockLedger::Claim::kYours;
  if (writing_ && claim_->use == Use::kScatter) {
    const std::size_t place = receiver_.place_of(*staging_, claim_->place);
    const Engine& engine = *receiver_.engine_;
    for (std::size_t cell = 0; cell < kBlockCells; ++cell) {
      receiver_.store(*staging_, claim_->place, cell, engine.cells(engine.serving(), place)[cell]);
    }
  }
  return {};
}

// Bytes of a whole block go to their place as they come.
Result<void> Receiver::BlockBody::take_payload(std::size_t begin, std::size_t end) {
  if (writing_ && claim_->use == Use::kStore) {
    for (std::size_t i = begin; i < end; ++i) {
      receiver_.store(*staging_, claim_->place, i, std::to_integer<std::uint8_t>(payload_[i]));
    }
  }
  return receiver_.machine_->touch(staging_->epoch, receiver_.now());
}

// The block that the payload makes.
Result<Cells> Receiver::BlockBody::decoded() const {
  if (claim_->use == Use::kStore || claim_->use == Use::kHash) return cells_of(payload_);
  const Engine& engine = *receiver_.engine_;
  const std::size_t place = receiver_.place_of(*staging_, claim_->place);
  return with_changes(encoding_, payload_, engine.cells(engine.serving(), place));
}

Result<void> Receiver::BlockBody::settle() {
  if (!writing_) {
    ++(claim_->found == BlockLedger::Claim::kVerified ? counts_.repeated : counts_.busy);
    return {};
  }
  WEFT_TRY(const Cells cells, decoded());
  if (claim_->use == Use::kScatter) {
    for (std::size_t cell = 0; cell < kBlockCells; ++cell) {
      receiver_.store(*staging_, claim_->place, cell, cells[cell]);
    }
  }
  if (claim_->use == Use::kKeep && encoding_ == Encoding::kDelta) {
    WEFT_TRY(const DeltaHeader header, read_delta_header(payload_, kBlockCells, kKind));
    WEFT_TRY_VOID(receiver_.machine_->keep(*staging_, *claim_, header.changed * kChangeBytes));
  }
  // What is kept is hashed before the commit or after it.
  const bool is_hashed = claim_->use != Use::kKeep || receiver_.hashes_patches_;
  const auto settled = receiver_.machine_->settle(
      *staging_, *claim_, is_hashed ? std::optional(digest_of_cells(cells)) : std::nullopt,
      frame_.digest, receiver_.now());
  if (!settled && settled.error().code() != ErrorCode::kConflict) return settled;
  writing_ = false;
  WEFT_TRY_VOID(settled);
  if (claim_->use == Use::kKeep) {
    receiver_.kept_[staging_->epoch].changes[receiver_.place_of(*staging_, claim_->place)] = {
        encoding_, payload_};
  }
  ++counts_.verified;
  return {};
}

void Receiver::BlockBody::drop() {
  if (!std::exchange(writing_, false)) return;
  receiver_.machine_->give_up(*staging_, *claim_, receiver_.now());
}

}  // namespace weft::sim
