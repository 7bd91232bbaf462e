#pragma once
// Where the two kinds of bulk body go: a whole safetensors file, and frames of blocks.

#include <functional>
#include <memory>

#include "weft/http/body.h"
#include "weft/transfer/internal/block_holders.h"
#include "weft/transfer/upload_host.h"

namespace weft::internal {

// The body is a safetensors file. `staged` is called when all of it is there and sealed, or could
// not be; a body that breaks before drops the staging. `length_bytes`: the body's, where it is
// known.
std::unique_ptr<http::BodySink> make_file_sink(std::shared_ptr<UploadHost> host, std::string owner,
                                               Epoch epoch,
                                               std::optional<std::uint64_t> length_bytes,
                                               std::function<void(Result<void>)> staged);

struct BlockCounts {
  std::uint64_t verified = 0;
  std::uint64_t repeated = 0;  // they were there
  std::uint64_t busy = 0;      // another connection was sending them
};

// The body is frames of blocks. Each that is whole and right counts, whatever becomes of the body.
// `close` ends its connection; `holders` are those of all bodies of the host.
std::unique_ptr<http::BodySink> make_blocks_sink(std::shared_ptr<UploadHost> host, Epoch epoch,
                                                 std::shared_ptr<BlockHolders> holders,
                                                 std::function<void()> close,
                                                 std::function<void(Result<BlockCounts>)> done);

}  // namespace weft::internal
