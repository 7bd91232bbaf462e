#pragma once
// Takes one block of an upload: identity straight into a file, other encodings through memory.

#include <memory>

#include "weft/protocol/block_ledger.h"
#include "weft/store/internal/intake.h"

namespace weft::store {

// Requires: the block is in the grid, and `found` is what claiming it said. With kYours the ledger
// and the machine wait for its settle(), which the destructor makes up for.
std::unique_ptr<BlockWriter> make_block_writer(std::shared_ptr<Intake> intake,
                                               std::shared_ptr<Upload> upload,
                                               std::shared_ptr<const PlannedUpload> plan,
                                               std::uint64_t entry, std::uint64_t block,
                                               BlockLedger::Claim found, Encoding encoding,
                                               std::uint64_t payload_bytes);

}  // namespace weft::store
