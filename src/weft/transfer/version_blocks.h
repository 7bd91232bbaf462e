#pragma once
// A version whose blocks can be read: of a folder, in memory, in a store.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/version_content.h"
#include "weft/transfer/tensor_source.h"
#include "weft/transfer/version_source.h"

namespace weft {

// Thread-safe.
class VersionBlocks {
 public:
  virtual ~VersionBlocks() = default;

  virtual const VersionContent& content() const = 0;
  // A block, by its place in the manifest: a view of where it lies, which stays while this lives,
  // or `scratch`, filled. Nobody has checked the bytes. Requires: scratch.size() is the block's
  // length. Blocks.
  virtual Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                           std::span<std::byte> scratch) const = 0;
};

// What a source has, as the version that it is. The source must outlive this.
class SourceVersion final : public VersionBlocks {
 public:
  // Reads and hashes all of it, on `threads` threads. Blocks. Errors: those of the source;
  // kInvalidArgument for two entries of one name.
  static Result<SourceVersion> blocking_make(const TensorSource& source, unsigned threads);

  const VersionContent& content() const override { return *content_; }
  const std::shared_ptr<const VersionContent>& shared_content() const { return content_; }
  Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                   std::span<std::byte> scratch) const override;

 private:
  explicit SourceVersion(const TensorSource& source) : source_(&source) {}

  const TensorSource* source_;
  std::shared_ptr<const VersionContent> content_;
  std::vector<std::size_t> entries_;  // of the source, in manifest order
};

// A version of whoever serves or keeps some. When its bytes are about to be overwritten it lets go
// of them: reads fail with kConflict from then on. Errors: those of the source's open_own().
Result<std::unique_ptr<VersionBlocks>> open_blocks(VersionSource& source, const std::string& id);

}  // namespace weft
