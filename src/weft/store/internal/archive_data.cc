#include "weft/store/internal/archive_data.h"

#include <algorithm>

#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/protocol/block_ledger.h"

namespace weft::store {
namespace {

class ArchiveData final : public VersionData {
 public:
  ArchiveData(std::shared_ptr<Archive> archive, std::shared_ptr<const Stored> stored)
      : archive_(std::move(archive)),
        stored_(std::move(stored)),
        sizes_bytes_(entry_sizes(stored_->content().manifest)) {}

  const VersionContent& content() const override { return stored_->content(); }

  Result<void> append(std::size_t entry, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<http::BodyPart>& parts) const override {
    archive_->count_sent(size_bytes);
    while (size_bytes > 0) {
      const std::uint64_t block = offset_bytes / kBlockBytes;
      const std::uint64_t length = block_length(sizes_bytes_[entry], block);
      http::BodyPart part;
      part.offset_bytes = offset_bytes % kBlockBytes;
      part.size_bytes = std::min(size_bytes, length - part.offset_bytes);
      const Digest& digest = content().blocks[entry][block];
      auto file = archive_->open_object(digest);
      if (!file) return bad_block(digest, file.error());
      part.file = *std::move(file);
      if (part.file->size_bytes() != length) {
        return bad_block(digest,
                         Error(ErrorCode::kCorrupt,
                               fmt::format("{}: {} bytes, expected {}", part.file->path().string(),
                                           part.file->size_bytes(), length)));
      }
      offset_bytes += part.size_bytes;
      size_bytes -= part.size_bytes;
      parts.push_back(std::move(part));
    }
    return {};
  }

  // A store never writes over what it has.
  std::shared_ptr<void> on_revoke(std::function<void()>) const override { return nullptr; }

 private:
  // Readers hear which block it is, and only the log where the store has it.
  static Error bad_block(const Digest& digest, const Error& error) {
    log_error("{}; `weft store fsck` says more", error.message());
    return {error.code(), fmt::format("the store cannot read block {}", digest_text(digest))};
  }

  std::shared_ptr<Archive> archive_;
  std::shared_ptr<const Stored> stored_;
  std::vector<std::uint64_t> sizes_bytes_;
};

class ArchiveBlocks final : public VersionBlocks {
 public:
  ArchiveBlocks(std::shared_ptr<Archive> archive, std::shared_ptr<const Stored> stored)
      : archive_(std::move(archive)), stored_(std::move(stored)) {}

  const VersionContent& content() const override { return stored_->content(); }
  Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                   std::span<std::byte> scratch) const override {
    WEFT_TRY_VOID(
        blocking_read_block(*archive_, content().blocks[place.entry][place.block], scratch));
    return std::span<const std::byte>(scratch);
  }

 private:
  std::shared_ptr<Archive> archive_;
  std::shared_ptr<const Stored> stored_;
};

}  // namespace

std::unique_ptr<VersionBlocks> make_version_blocks(std::shared_ptr<Archive> archive,
                                                   std::shared_ptr<const Stored> stored) {
  return std::make_unique<ArchiveBlocks>(std::move(archive), std::move(stored));
}

std::shared_ptr<const VersionData> make_version_data(std::shared_ptr<Archive> archive,
                                                     std::shared_ptr<const Stored> stored) {
  return std::make_shared<const ArchiveData>(std::move(archive), std::move(stored));
}

Result<void> blocking_read_block(Archive& archive, const Digest& digest, std::span<std::byte> out) {
  WEFT_TRY(const auto file, archive.open_object(digest));
  return file->blocking_read_at(0, out);
}

}  // namespace weft::store
