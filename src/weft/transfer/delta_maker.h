#pragma once
// Makes a delta object: every payload is decoded again, and what comes out is held to the target's
// digest, before it goes anywhere (but see DeltaMakeOptions::trusted).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "weft/base/result.h"
#include "weft/codec/delta_codec.h"
#include "weft/format/delta_index.h"
#include "weft/transfer/version_blocks.h"

namespace weft {

struct DeltaMakeOptions {
  unsigned threads = 1;  // of any number the result is the same
  // A delta that gets larger, payloads and index, is given up: kTooLarge.
  std::uint64_t limit_bytes = std::numeric_limits<std::uint64_t>::max();
  // Blocks that are done, out of all that change; called from the calling thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
  // Both versions lie in memory that nobody writes to and were hashed there: their blocks are not
  // hashed again, and payloads are not proven. Whoever applies one holds the block to its digest.
  bool trusted = false;
  DeltaGoal goal = DeltaGoal::kSmall;
  // Asked now and then, from any thread: kCancelled when it says so.
  std::function<bool()> cancelled{};
};

// Takes the payloads, in order, each with the number of its pack; from one thread at a time.
using DeltaPayloadSink =
    std::function<Result<void>(std::size_t pack, std::span<const std::byte> payload)>;

// Memory: for each thread, what encode_delta() needs, three blocks and two payloads. Blocks.
// Errors: those of the two versions and the sink; kCorrupt naming version, tensor and block where
// the bytes of one are not what its digests say.
Result<DeltaIndex> blocking_make_delta(const VersionBlocks& base, const VersionBlocks& target,
                                       const DeltaPayloadSink& sink,
                                       const DeltaMakeOptions& options = {});

}  // namespace weft
