#pragma once
// TensorSource: where a push reads a version's entries: memory, files on disk, or a trainer that
// gathers its shards as it goes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/tensor/tensor.h"
#include "weft/transfer/upload_host.h"

namespace weft {

// Thread-safe: each connection reads blocks of its own.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // The entries: tensors, then files. Constant.
  virtual const std::vector<TensorSpec>& tensors() const = 0;
  virtual const std::vector<OfferedFile>& files() const = 0;

  // Bytes [offset, offset + scratch.size()) of an entry: a view of where they lie, which stays
  // while the source lives, or `scratch`, filled. The same bytes each time, until the push is over.
  // Blocks. Errors: kCorrupt, kInternal naming the file or tensor; the push then ends with them.
  virtual Result<std::span<const std::byte>> blocking_read(std::size_t entry,
                                                           std::uint64_t offset_bytes,
                                                           std::span<std::byte> scratch) const = 0;

  // Reading costs more than sending: each byte is read once if that can be.
  virtual bool is_costly() const { return false; }
};

// Sizes in bytes of a source's entries. Errors: kInvalidArgument.
Result<std::vector<std::uint64_t>> entry_sizes(const TensorSource& source);

// Of tensors in memory, which is read until the source is gone.
class MemorySource final : public TensorSource {
 public:
  // Errors: kInvalidArgument naming a tensor whose bytes do not fit its shape.
  static Result<MemorySource> create(std::span<const TensorView> tensors,
                                     std::map<std::string, std::string> files = {});

  const std::vector<TensorSpec>& tensors() const override { return specs_; }
  const std::vector<OfferedFile>& files() const override { return offered_; }
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override;

 private:
  MemorySource() = default;

  std::vector<TensorSpec> specs_;
  std::vector<OfferedFile> offered_;
  std::vector<std::span<const std::byte>> data_;  // [entries]
  std::shared_ptr<const std::map<std::string, std::string>> files_;
};

// The weights of a Hugging Face folder with its model files, or of one .safetensors file.
Result<std::unique_ptr<TensorSource>> blocking_open_source(const std::filesystem::path& path);

// The values of all blocks of a source: [entries][blocks].
using VersionDigests = std::vector<std::vector<Digest>>;
// Reads and hashes all of it, on `threads` threads. Blocks. Errors: those of the source.
Result<VersionDigests> blocking_hash_source(const TensorSource& source, unsigned threads);

}  // namespace weft
