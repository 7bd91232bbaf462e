#pragma once
// Where pulls go: into memory, or into a Hugging Face folder.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/puller.h"

namespace weft {

// A version in memory. One pull; then weights() and files() are its.
class MemoryTarget final : public PullTarget {
 public:
  // Where the version has another layout than the memory that was given.
  enum class Otherwise { kRefuse, kAllocate };

  // Into `weights`, where given, whose layout must be the version's (else kConflict naming a tensor
  // that differs, or new memory); else into new memory.
  explicit MemoryTarget(std::shared_ptr<WeightSet> weights = nullptr,
                        Otherwise otherwise = Otherwise::kRefuse)
      : weights_(std::move(weights)), otherwise_(otherwise) {}

  Result<Held> blocking_prepare(const std::string& id, const Manifest& manifest,
                                const VersionDigests& digests) override;
  std::span<std::byte> place(std::size_t entry, std::uint64_t offset_bytes,
                             std::span<std::byte> scratch) override;
  Result<void> blocking_write(std::size_t, std::uint64_t, std::span<const std::byte>) override {
    return {};
  }
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override;
  Result<void> blocking_finish() override { return {}; }

  const std::shared_ptr<WeightSet>& weights() const { return weights_; }
  const std::map<std::string, std::string>& files() const { return files_; }

 private:
  std::shared_ptr<WeightSet> weights_;
  const Otherwise otherwise_;
  std::map<std::string, std::string> files_;
  std::vector<std::span<std::byte>> entries_;
};

// A folder as transformers reads and writes it: model.safetensors, or shards with their index where
// the weights are over `shard_bytes`, and the version's files. It is written beside, in
// `.NAME.ID.part`, and gets its name when all is there and synced; a pull that was cut goes on with
// what that folder has.
class FolderTarget final : public PullTarget {
 public:
  // Source: transformers' default max_shard_size, 5 GB.
  static constexpr std::uint64_t kShardBytes = 5'000'000'000;

  // What is at its name already is in the way, or is taken away in the end, if it is a model's.
  enum class Existing { kRefuse, kReplace };

  explicit FolderTarget(const std::filesystem::path& folder,
                        std::uint64_t shard_bytes = kShardBytes,
                        Existing existing = Existing::kRefuse);
  ~FolderTarget() override;
  FolderTarget(const FolderTarget&) = delete;
  FolderTarget& operator=(const FolderTarget&) = delete;

  // Errors: kConflict when the folder is there and not empty, or has something in it that is not a
  // model's; kInvalidArgument for a file that is none of a model's; kForbidden, kNoSpace,
  // kInternal.
  Result<Held> blocking_prepare(const std::string& id, const Manifest& manifest,
                                const VersionDigests& digests) override;
  std::span<std::byte> place(std::size_t, std::uint64_t, std::span<std::byte> scratch) override {
    return scratch;
  }
  Result<void> blocking_write(std::size_t entry, std::uint64_t offset_bytes,
                              std::span<const std::byte> bytes) override;
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override;
  Result<void> blocking_finish() override;
  // Removes what is not finished, after which nothing can go on with it.
  void blocking_discard();

 private:
  struct OpenFile {
    std::filesystem::path path;
    int fd = -1;
  };
  struct Entry {
    std::size_t file;
    std::uint64_t offset_bytes;
  };
  static Result<void> blocking_write_at(const OpenFile& file, std::uint64_t offset_bytes,
                                        std::span<const std::byte> bytes);
  Result<void> blocking_create(const std::string& name, std::uint64_t size_bytes,
                               std::string_view header);
  Result<void> blocking_create_shards(const Manifest& manifest);
  Result<void> blocking_check_existing() const;
  Result<void> blocking_rename() const;
  void close_files();

  const std::filesystem::path folder_;
  const std::uint64_t shard_bytes_;
  const Existing existing_;
  std::filesystem::path part_;  // what is written before it gets its name
  std::vector<OpenFile> files_;
  std::vector<Entry> entries_;
};

}  // namespace weft
