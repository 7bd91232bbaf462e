#include "weft/store/internal/block_writer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/codec/elem_kind.h"
#include "weft/store/internal/archive_data.h"

namespace weft::store {
namespace {

// Read, hashed and written in one go, so that all three find the bytes in the cache.
constexpr std::uint64_t kPieceBytes = 512 << 10;

class StoreWriter final : public BlockWriter {
 public:
  StoreWriter(std::shared_ptr<Intake> intake, std::shared_ptr<Upload> upload,
              std::shared_ptr<const PlannedUpload> plan, std::uint64_t entry, std::uint64_t block,
              BlockLedger::Claim found, Encoding encoding, std::uint64_t payload_bytes)
      : intake_(std::move(intake)),
        upload_(std::move(upload)),
        plan_(std::move(plan)),
        entry_(plan_->entries[entry]),
        entry_index_(entry),
        block_(block),
        found_(found),
        encoding_(encoding),
        payload_bytes_(payload_bytes),
        left_bytes_(payload_bytes),
        buffer_bytes_(is_kept() && encoding != Encoding::kIdentity
                          ? payload_bytes
                          : std::min(payload_bytes, kPieceBytes)),
        buffer_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes_)),
        hasher_(entry_.size_bytes, block) {}

  ~StoreWriter() override {
    if (settled_ || !is_kept()) return;
    drop_file();
    static_cast<void>(intake_->settle(*upload_, entry_index_, block_, nullptr));
  }

  std::span<std::byte> buffer() override {
    const std::span<std::byte> all(buffer_.get(), buffer_bytes_);
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(left_bytes_, all.size()));
    return is_gathered() ? all.last(wanted) : all.first(wanted);
  }

  Result<void> filled(std::size_t size_bytes) override {
    const auto piece = buffer().first(size_bytes);
    left_bytes_ -= size_bytes;
    if (!is_kept() || is_gathered()) return {};
    hasher_.update(piece);
    return write(piece);
  }

  std::uint64_t left_bytes() const override { return left_bytes_; }
  BlockLedger::Claim found() const override { return found_; }

  Result<void> settle(const std::optional<Digest>& expected) override {
    if (!is_kept()) return {};
    if (encoding_ != Encoding::kIdentity) WEFT_TRY_VOID(decode());
    const Digest digest = hasher_.finish();
    WEFT_TRY_VOID(check(digest, expected));
    WEFT_TRY_VOID(intake_->touch(upload_->epoch));
    file_.reset();
    const StagedName name{entry_index_, block_, digest};
    WEFT_TRY_VOID(intake_->disk().rename(path_, upload_->staging / staged_name(name)));
    settled_ = true;
    intake_->count_block(encoding_, payload_bytes_);
    return intake_->settle(*upload_, entry_index_, block_, &digest);
  }

 private:
  bool is_kept() const { return found_ == BlockLedger::Claim::kYours; }
  // The payload is needed whole before anything can be done with it.
  bool is_gathered() const { return is_kept() && encoding_ != Encoding::kIdentity; }

  Result<void> write(std::span<const std::byte> bytes) {
    if (!file_) {
      path_ = upload_->staging / intake_->next_temporary_name();
      WEFT_TRY(file_, intake_->disk().create(path_));
    }
    return file_->append(bytes);
  }

  Result<void> decode() {
    const std::span<const std::byte> payload(buffer_.get(), buffer_bytes_);
    const auto size = static_cast<std::size_t>(block_length(entry_.size_bytes, block_));
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span<std::byte> bytes(memory.get(), size);
    auto decoded =
        needs_base(encoding_) ? decode_over_base(payload, bytes) : decode_zstd(payload, bytes);
    if (!decoded) return std::move(decoded).error().with_context(where());
    hasher_.update(bytes);
    return write(bytes);
  }

  Result<void> decode_over_base(std::span<const std::byte> payload, std::span<std::byte> bytes) {
    const ElemKind kind = elem_kind_of(entry_.spec.dtype);
    const Digest& base = plan_->base->content().blocks[*entry_.base_entry][block_];
    if (encoding_ == Encoding::kDelta) {
      const auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
      const std::span<std::byte> base_bytes(memory.get(), bytes.size());
      WEFT_TRY_VOID(blocking_read_block(intake_->archive(), base, base_bytes));
      return decode_delta(payload, base_bytes, kind, bytes);
    }
    WEFT_TRY(const SparsePatch patch, parse_sparse(payload, bytes.size(), elem_size_bytes(kind)));
    WEFT_TRY_VOID(blocking_read_block(intake_->archive(), base, bytes));
    WEFT_TRY_VOID(check_sparse_base(patch, bytes));
    apply_sparse(patch, bytes);
    return {};
  }

  Result<void> check(const Digest& digest, const std::optional<Digest>& expected) const {
    const auto& announced = plan_->announced[entry_index_];
    for (const Digest* wanted :
         {expected ? &*expected : nullptr, announced.empty() ? nullptr : &announced[block_]}) {
      if (wanted == nullptr || *wanted == digest) continue;
      return Error(ErrorCode::kCorrupt,
                   fmt::format("{}: the bytes that came are {}, expected {}", where(),
                               digest_text(digest), digest_text(*wanted)));
    }
    return {};
  }

  std::string where() const { return fmt::format("{}, block {}", entry_.name(), block_); }

  void drop_file() {
    file_.reset();
    if (path_.empty()) return;
    const auto removed = intake_->disk().remove(path_);
    if (!removed) log_warning("store: {}", removed.error().message());
  }

  std::shared_ptr<Intake> intake_;
  std::shared_ptr<Upload> upload_;
  std::shared_ptr<const PlannedUpload> plan_;
  const UploadEntry& entry_;
  std::uint64_t entry_index_, block_;
  BlockLedger::Claim found_;
  Encoding encoding_;
  std::uint64_t payload_bytes_, left_bytes_;
  std::size_t buffer_bytes_;
  std::unique_ptr<std::byte[]> buffer_;
  BlockHasher hasher_;
  std::filesystem::path path_;  // of file_; its name changes when the block is verified
  std::optional<NewFile> file_;
  bool settled_ = false;
};

}  // namespace

std::unique_ptr<BlockWriter> make_block_writer(std::shared_ptr<Intake> intake,
                                               std::shared_ptr<Upload> upload,
                                               std::shared_ptr<const PlannedUpload> plan,
                                               std::uint64_t entry, std::uint64_t block,
                                               BlockLedger::Claim found, Encoding encoding,
                                               std::uint64_t payload_bytes) {
  return std::make_unique<StoreWriter>(std::move(intake), std::move(upload), std::move(plan), entry,
                                       block, found, encoding, payload_bytes);
}

}  // namespace weft::store
