#include "weft/transfer/internal/block_writer.h"

#include <algorithm>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/codec/elem_kind.h"
#include "weft/transfer/internal/block_fill.h"

namespace weft::internal {
namespace {

using Use = BlockClaim::Use;

// Of a block that is ours; the others have a DroppingWriter.
class Writer : public BlockWriter {
 public:
  Writer(std::shared_ptr<Core> core, std::shared_ptr<Upload> upload, const BlockClaim& claim,
         Encoding encoding)
      : core_(std::move(core)), upload_(std::move(upload)), claim_(claim), encoding_(encoding) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() override {
    if (!settled_) core_->give_up(*upload_, claim_);
  }

  BlockLedger::Claim found() const override { return BlockLedger::Claim::kYours; }

 protected:
  const UploadPlan& plan() const { return upload_->staging->plan; }
  std::uint64_t entry() const { return claim_.place.entry; }
  std::uint64_t block() const { return claim_.place.block; }
  std::uint64_t entry_bytes() const { return plan().sizes_bytes[entry()]; }
  std::uint64_t block_bytes() const { return block_length(entry_bytes(), block()); }
  std::string name() const {
    return fmt::format("{}, block {}", plan().name(entry(), core_->layout()), block());
  }

  // A filler of the claimed block.
  BlockFill make_fill() const {
    const bool is_tensor = entry() < plan().tensors.size();
    const DType from = is_tensor ? plan().tensors[entry()].spec.dtype : DType::kU8;
    if (claim_.use != Use::kStore)
      return BlockFill(core_->hash_helper(), from, from, entry_bytes(), block(),
                       BlockFill::Mode::kHash, {});
    const auto target = plan().try_target(entry());
    const DType to = target ? core_->layout().tensors()[*target].dtype : from;
    return BlockFill(core_->hash_helper(), from, to, entry_bytes(), block(),
                     BlockFill::Mode::kStore, core_->memory_of(*upload_, entry()));
  }

  Result<void> settle_as(const std::optional<Digest>& computed,
                         const std::optional<Digest>& expected, std::optional<Patch> patch = {}) {
    auto settled = core_->settle(*upload_, claim_, computed, expected, std::move(patch));
    const bool goes_on = !settled && (settled.error().code() == ErrorCode::kCorrupt ||
                                      settled.error().code() == ErrorCode::kTooLarge);
    settled_ = !goes_on;
    return settled;
  }

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Upload> upload_;
  BlockClaim claim_;
  const Encoding encoding_;

 private:
  bool settled_ = false;
};

// The bytes of the block itself.
class WholeWriter final : public Writer {
 public:
  WholeWriter(std::shared_ptr<Core> core, std::shared_ptr<Upload> upload, const BlockClaim& claim)
      : Writer(std::move(core), std::move(upload), claim, Encoding::kIdentity),
        fill_(make_fill()) {}

  std::span<std::byte> buffer() override { return fill_.buffer(); }
  Result<void> filled(std::size_t size_bytes) override {
    const Instant start = now();
    fill_.filled(size_bytes);
    verify_seconds_ += seconds_since(start);
    return {};
  }
  std::uint64_t left_bytes() const override { return fill_.left_bytes(); }
  Result<void> settle(const std::optional<Digest>& expected) override {
    core_->count_block(encoding_, claim_.payload_bytes, verify_seconds_);
    return settle_as(fill_.digest(), expected);
  }

 private:
  BlockFill fill_;
  double verify_seconds_ = 0;
};

// A payload that is decoded when all of it is there.
class PayloadWriter final : public Writer {
 public:
  PayloadWriter(std::shared_ptr<Core> core, std::shared_ptr<Upload> upload, const BlockClaim& claim,
                Encoding encoding)
      : Writer(std::move(core), std::move(upload), claim, encoding),
        payload_(std::make_unique_for_overwrite<std::byte[]>(
            static_cast<std::size_t>(claim.payload_bytes))) {}

  std::span<std::byte> buffer() override { return payload().subspan(have_bytes_); }
  Result<void> filled(std::size_t size_bytes) override {
    have_bytes_ += size_bytes;
    return {};
  }
  std::uint64_t left_bytes() const override { return claim_.payload_bytes - have_bytes_; }
  Result<void> settle(const std::optional<Digest>& expected) override {
    const Instant start = now();
    auto decoded = decode();
    core_->count_block(encoding_, claim_.payload_bytes, seconds_since(start));
    if (!decoded) return std::move(decoded).error().with_context(name());
    return settle_as(decoded->computed, expected, std::move(decoded->patch));
  }

 private:
  struct Decoded {
    std::optional<Digest> computed{};
    std::optional<Patch> patch{};
  };

  std::span<std::byte> payload() const {
    return {payload_.get(), static_cast<std::size_t>(claim_.payload_bytes)};
  }

  Result<Decoded> decode() {
    if (encoding_ == Encoding::kZstd) return decode_whole();
    const auto target = plan().try_target(entry());
    const ElemKind kind = elem_kind_of(core_->layout().tensors()[*target].dtype);
    const auto base = core_->served_block(*upload_, claim_.place);
    if (encoding_ == Encoding::kDelta)
      return claim_.use == Use::kScatter ? decode_over(base, kind) : resolve(base, kind);
    WEFT_TRY(const SparsePatch patch,
             parse_sparse(payload(), block_bytes(), elem_size_bytes(kind)));
    WEFT_TRY_VOID(check_sparse_base(patch, base));
    return claim_.use == Use::kScatter ? scatter(base, patch)
                                       : keep(base, std::move(payload_), patch);
  }

  Result<Decoded> decode_whole() {
    const auto size = static_cast<std::size_t>(block_bytes());
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(size);
    WEFT_TRY_VOID(decode_zstd(payload(), {scratch.get(), size}));
    BlockFill fill = make_fill();
    for (std::size_t at = 0; at < size;) {
      const auto piece = fill.buffer();
      std::copy_n(scratch.get() + at, piece.size(), piece.begin());
      fill.filled(piece.size());
      at += piece.size();
    }
    return Decoded{fill.digest()};
  }

  // The block's place in the set.
  std::span<std::byte> place() const {
    return block_of(core_->memory_of(*upload_, entry()), block());
  }

  Decoded scatter(std::span<const std::byte> base, const SparsePatch& patch) {
    std::ranges::copy(base, place().begin());
    apply_sparse(patch, place());
    return Decoded{block_digest(entry_bytes(), block(), place())};
  }

  Result<Decoded> decode_over(std::span<const std::byte> base, ElemKind kind) {
    WEFT_TRY_VOID(decode_delta(payload(), base, kind, place()));
    return Decoded{block_digest(entry_bytes(), block(), place())};
  }

  // What is kept counts as a sparse payload of the same changes does. The header says how many they
  // are, except where the delta has the block itself.
  Result<Decoded> resolve(std::span<const std::byte> base, ElemKind kind) {
    const std::uint64_t change_bytes = sizeof(std::uint32_t) + elem_size_bytes(kind);
    WEFT_TRY(const DeltaHeader header, read_delta_header(payload(), block_bytes(), kind));
    WEFT_TRY_VOID(core_->keep(*upload_, claim_, header.changed * change_bytes));
    WEFT_TRY(DeltaPatch resolved, resolve_delta(payload(), base, kind));
    const auto patch = std::make_shared<const DeltaPatch>(std::move(resolved));
    WEFT_TRY_VOID(core_->keep(*upload_, claim_, patch->positions.size() * change_bytes));
    return keep(base, patch, patch->view(kind));
  }

  // `memory`: that `patch` looks into.
  Decoded keep(std::span<const std::byte> base, std::shared_ptr<const void> memory,
               const SparsePatch& patch) {
    Decoded decoded;
    if (core_->verifies_fully()) {
      std::vector<std::byte> scratch(base.begin(), base.end());
      apply_sparse(patch, scratch);
      decoded.computed = block_digest(entry_bytes(), block(), scratch);
    }
    // Touched here, so that no page fault lands in the pause.
    std::vector<std::byte> undo(patch.values.size());
    decoded.patch = Patch{claim_.place, std::move(memory), patch, std::move(undo)};
    return decoded;
  }

  std::unique_ptr<std::byte[]> payload_;
  std::size_t have_bytes_ = 0;
};

// A payload that is not needed: it is read and dropped.
class DroppingWriter final : public BlockWriter {
 public:
  explicit DroppingWriter(const BlockClaim& claim)
      : found_(claim.found), left_bytes_(claim.payload_bytes) {}

  std::span<std::byte> buffer() override {
    return std::span(bounce_).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(left_bytes_, bounce_.size())));
  }
  Result<void> filled(std::size_t size_bytes) override {
    left_bytes_ -= size_bytes;
    return {};
  }
  std::uint64_t left_bytes() const override { return left_bytes_; }
  BlockLedger::Claim found() const override { return found_; }
  Result<void> settle(const std::optional<Digest>&) override { return {}; }

 private:
  const BlockLedger::Claim found_;
  std::uint64_t left_bytes_;
  std::vector<std::byte> bounce_{std::vector<std::byte>(64 << 10)};
};

}  // namespace

std::unique_ptr<BlockWriter> make_block_writer(std::shared_ptr<Core> core,
                                               std::shared_ptr<Upload> upload,
                                               const BlockClaim& claim, Encoding encoding) {
  if (claim.use == Use::kDiscard) return std::make_unique<DroppingWriter>(claim);
  if (encoding == Encoding::kIdentity)
    return std::make_unique<WholeWriter>(std::move(core), std::move(upload), claim);
  return std::make_unique<PayloadWriter>(std::move(core), std::move(upload), claim, encoding);
}

}  // namespace weft::internal
