#pragma once
// The writers of blocks of a receiver: whole ones go straight to their place as they come, others
// are gathered, then decoded.

#include <memory>

#include "weft/transfer/internal/core.h"

namespace weft::internal {

// `claim` is given up when the writer is dropped without a settle() that worked.
std::unique_ptr<BlockWriter> make_block_writer(std::shared_ptr<Core> core,
                                               std::shared_ptr<Upload> upload,
                                               const BlockClaim& claim, Encoding encoding);

}  // namespace weft::internal
