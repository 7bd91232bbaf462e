#include "weft/transfer/tensor_source.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/core.h>

#include "weft/checkpoint/checkpoint_files.h"
#include "weft/checkpoint/model_files.h"
#include "weft/protocol/block_ledger.h"
#include "weft/transfer/internal/crew.h"

namespace weft {
namespace {

// Tensors are read block by block, so that a checkpoint is never in memory as a whole.
class CheckpointSource final : public TensorSource {
 public:
  CheckpointSource(CheckpointFiles checkpoint, ModelFiles files)
      : checkpoint_(std::move(checkpoint)) {
    for (const auto& entry : checkpoint_.tensors()) specs_.push_back(entry.spec);
    for (auto& [name, text] : files) {
      offered_.push_back({name, text.size()});
      texts_.push_back(std::move(text));
    }
  }

  const std::vector<TensorSpec>& tensors() const override { return specs_; }
  const std::vector<OfferedFile>& files() const override { return offered_; }
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override {
    if (entry >= specs_.size()) {
      return std::as_bytes(std::span(texts_.at(entry - specs_.size())))
          .subspan(static_cast<std::size_t>(offset_bytes), scratch.size());
    }
    WEFT_TRY_VOID(
        checkpoint_.blocking_read_at(checkpoint_.tensors()[entry], offset_bytes, scratch));
    return std::span<const std::byte>(scratch);
  }

 private:
  CheckpointFiles checkpoint_;
  std::vector<TensorSpec> specs_;
  std::vector<OfferedFile> offered_;
  std::vector<std::string> texts_;
};

// Hashes blocks of a source. One thread.
class SourceHasher {
 public:
  explicit SourceHasher(const TensorSource& source)
      : source_(source),
        piece_bytes_(source.is_costly() ? kBlockBytes : kPieceBytes),
        scratch_(new std::byte[piece_bytes_]) {}

  Result<Digest> blocking_hash(std::size_t entry, std::size_t block, std::uint64_t entry_bytes) {
    BlockHasher hasher(entry_bytes, block);
    const auto length = static_cast<std::size_t>(block_length(entry_bytes, block));
    for (std::size_t at = 0; at < length; at += piece_bytes_) {
      const std::span piece(scratch_.get(), std::min(piece_bytes_, length - at));
      WEFT_TRY(const auto bytes, source_.blocking_read(entry, block * kBlockBytes + at, piece));
      hasher.update(bytes);
    }
    return hasher.finish();
  }

 private:
  // What was read or copied is hashed while it is in the second-level cache. Source: measured.
  static constexpr std::size_t kPieceBytes = 256 << 10;

  const TensorSource& source_;
  const std::size_t piece_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace

Result<std::vector<std::uint64_t>> entry_sizes(const TensorSource& source) {
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& spec : source.tensors()) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(spec));
    sizes.push_back(size_bytes);
  }
  for (const OfferedFile& file : source.files()) sizes.push_back(file.size_bytes);
  return sizes;
}

Result<MemorySource> MemorySource::create(std::span<const TensorView> tensors,
                                          std::map<std::string, std::string> files) {
  MemorySource source;
  for (const TensorView& tensor : tensors) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(tensor.spec));
    if (size_bytes != tensor.data.size()) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}: {} bytes of data, {} of {} have {}", tensor.spec.name,
                               tensor.data.size(), shape_text(tensor.spec.shape),
                               dtype_name(tensor.spec.dtype), size_bytes));
    }
    source.specs_.push_back(tensor.spec);
    source.data_.push_back(tensor.data);
  }
  source.files_ = std::make_shared<const std::map<std::string, std::string>>(std::move(files));
  for (const auto& [name, text] : *source.files_) {
    source.offered_.push_back({name, text.size()});
    source.data_.push_back(std::as_bytes(std::span(text)));
  }
  return source;
}

Result<std::span<const std::byte>> MemorySource::blocking_read(std::size_t entry,
                                                               std::uint64_t offset_bytes,
                                                               std::span<std::byte> scratch) const {
  return data_.at(entry).subspan(static_cast<std::size_t>(offset_bytes), scratch.size());
}

Result<std::unique_ptr<TensorSource>> blocking_open_source(const std::filesystem::path& path) {
  WEFT_TRY(CheckpointFiles checkpoint, CheckpointFiles::blocking_open(path));
  ModelFiles files;
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) {
    WEFT_TRY(files, blocking_read_model_files(path));
  }
  return std::unique_ptr<TensorSource>(
      std::make_unique<CheckpointSource>(std::move(checkpoint), std::move(files)));
}

Result<VersionDigests> blocking_hash_source(const TensorSource& source, unsigned threads) {
  WEFT_TRY(const std::vector<std::uint64_t> sizes, entry_sizes(source));
  VersionDigests digests;
  std::vector<std::pair<std::size_t, std::size_t>> blocks;  // entry, block
  for (std::size_t entry = 0; entry < sizes.size(); ++entry) {
    digests.emplace_back(static_cast<std::size_t>(block_count(sizes[entry])));
    for (std::size_t block = 0; block < digests.back().size(); ++block) {
      blocks.emplace_back(entry, block);
    }
  }
  const std::uint64_t total_bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  const auto busy = static_cast<unsigned>(
      std::min<std::uint64_t>(std::max(1u, threads), 1 + total_bytes / kBlockBytes));
  internal::Crew crew;
  std::optional<Error> failed;
  std::size_t next = 0;
  crew.blocking_run(busy, "weft-hash", [&](std::unique_lock<std::mutex>& lock) {
    SourceHasher hasher(source);
    while (!failed && next < blocks.size()) {
      const auto [entry, block] = blocks[next++];
      lock.unlock();
      auto digest = hasher.blocking_hash(entry, block, sizes[entry]);
      lock.lock();
      if (digest) digests[entry][block] = *digest;
      if (!digest && !failed) failed = std::move(digest).error();
    }
  });
  if (failed) return *failed;
  return digests;
}

}  // namespace weft
