#pragma once
// A delta object as one file, for `weft diff` and `weft apply`. docs/formats/delta-index.md, "The
// file".

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/result.h"
#include "weft/format/delta_index.h"
#include "weft/format/manifest.h"
#include "weft/transfer/delta_maker.h"
#include "weft/transfer/version_blocks.h"

namespace weft {

struct DeltaFileReport {
  std::uint64_t file_bytes = 0, index_bytes = 0, payload_bytes = 0;
  std::size_t blocks = 0;  // that changed
};

// Writes it beside and renames it over what may be there. Errors: those of blocking_make_delta();
// file_error(). Blocks.
Result<DeltaFileReport> blocking_write_delta_file(const std::filesystem::path& path,
                                                  const VersionBlocks& base,
                                                  const VersionBlocks& target,
                                                  const DeltaMakeOptions& options = {});

// One that is whole. Thread-compatible: blocking_read_payload() from several threads is fine.
class DeltaFile {
 public:
  // Reads and hashes all of it; index and manifest are of one target. Errors, naming the file: as
  // File::open; kCorrupt, kUnsupported. Blocks.
  static Result<DeltaFile> blocking_open(const std::filesystem::path& path);

  const Manifest& manifest() const { return manifest_; }  // the target's
  const DeltaIndex& index() const { return index_; }
  // Of a row of the index. Requires: scratch.size() is its payload's. Blocks.
  Result<std::span<const std::byte>> blocking_read_payload(std::size_t row,
                                                           std::span<std::byte> scratch) const;

 private:
  explicit DeltaFile(File file) : file_(std::move(file)) {}
  Result<void> blocking_read();
  // Its packs and its digest; `hasher` has what comes before them.
  Result<void> blocking_check_packs(Hasher hasher);

  File file_;
  Manifest manifest_;
  DeltaIndex index_;
  std::vector<std::uint64_t> offsets_bytes_;  // of the payloads, in the file
};

}  // namespace weft
