#pragma once
// The receiving side of a pull: fetches a version from a receiver or a store, or through a cache,
// and holds every block to the version's id before it counts. docs/protocol.md, "Pulling".

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/format/manifest.h"
#include "weft/http/client.h"
#include "weft/protocol/block_ledger.h"
#include "weft/transfer/tensor_source.h"

namespace weft {

// Where a pull puts a version. Calls for different bytes may run side by side.
class PullTarget {
 public:
  virtual ~PullTarget() = default;

  // What is there before anything has come.
  struct Held {
    std::vector<BlockPlace> blocks{};  // that are right
    // Others may be there from an earlier pull of the same version, so that reading and hashing
    // them is worth while.
    bool maybe_more = false;
  };
  // Reserves what the version needs; before all other calls. `digests`: of all blocks. Blocks.
  virtual Result<Held> blocking_prepare(const std::string& id, const Manifest& manifest,
                                        const VersionDigests& digests) = 0;
  // Memory for bytes [offset, offset + scratch.size()) of an entry: where they belong, or
  // `scratch`.
  virtual std::span<std::byte> place(std::size_t entry, std::uint64_t offset_bytes,
                                     std::span<std::byte> scratch) = 0;
  // They are in the memory that place() gave. Blocks.
  virtual Result<void> blocking_write(std::size_t entry, std::uint64_t offset_bytes,
                                      std::span<const std::byte> bytes) = 0;
  // As TensorSource::blocking_read(), of what was written.
  virtual Result<std::span<const std::byte>> blocking_read(std::size_t entry,
                                                           std::uint64_t offset_bytes,
                                                           std::span<std::byte> scratch) const = 0;
  // All of it is there and right. Blocks.
  virtual Result<void> blocking_finish() = 0;
};

struct PullOptions {
  unsigned connections = 2;
  unsigned retries = 5;                       // in a row that bring nothing
  std::chrono::milliseconds first_wait{100};  // before a retry; doubled with each in a row
  // Others that may have the version, asked where the first fails or has wrong bytes.
  std::vector<http::Client*> mirrors{};
  // Bytes at hand of a version that may share blocks with this one, and their digests if they are
  // known. What is equal is copied instead of fetched.
  const TensorSource* base = nullptr;
  const VersionDigests* base_digests = nullptr;
  // Bytes that are there and verified, out of all; called from the pulling thread.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};
  // An entry of the manifest is there and verified; each once, from the pulling thread. Those
  // without a byte are not told.
  std::function<void(std::size_t entry)> entry_done{};
};

struct PullReport {
  std::string id;
  Manifest manifest;
  VersionDigests digests;           // of all blocks
  std::uint64_t total_bytes = 0;    // of the entries
  std::uint64_t fetched_bytes = 0;  // and verified
  std::uint64_t held_bytes = 0;     // were at hand
  unsigned resumed = 0;             // how often something was taken up again
  unsigned corrupt_blocks = 0;      // came wrong and were fetched again
  double seconds = 0;
};

// Pulls version `id` ("blake3:...") into `target`. Memory: a block for each connection, if the
// target needs that. Blocks. Errors: the source's, with its words (kNotFound: the version is not
// there, or not any more); kCorrupt, naming entry and block, for bytes that keep coming wrong; the
// target's; kDisconnected when retries ran out. The target is then not finished.
Result<PullReport> blocking_pull(http::Client& source, const std::string& id, PullTarget& target,
                                 const PullOptions& options = {});

// The id that `text` means at a source: an id, `#head`, a label, or the first hex digits of an id
// (8 at least). Blocks. Errors: kNotFound; kInvalidArgument when several ids begin so.
Result<std::string> blocking_resolve_version(http::Client& source, std::string_view text);

}  // namespace weft
