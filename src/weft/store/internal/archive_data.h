#pragma once
// The bytes of a stored version, as ranges of its blocks' files.

#include <memory>

#include "weft/store/internal/archive.h"

namespace weft::store {

std::shared_ptr<const VersionData> make_version_data(std::shared_ptr<Archive> archive,
                                                     std::shared_ptr<const Stored> stored);

// Its blocks, to be read.
std::unique_ptr<VersionBlocks> make_version_blocks(std::shared_ptr<Archive> archive,
                                                   std::shared_ptr<const Stored> stored);

// Block `block` of an entry, into all of `out`. Errors: as File::open and File::blocking_read_at.
Result<void> blocking_read_block(Archive& archive, const Digest& digest, std::span<std::byte> out);

}  // namespace weft::store
