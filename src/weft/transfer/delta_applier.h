#pragma once
// Makes a version from one that is at hand and deltas, block by block through all of them: no
// version in between is ever there as a whole.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "weft/base/result.h"
#include "weft/codec/delta_codec.h"
#include "weft/format/delta_index.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/version_blocks.h"

namespace weft {

// One delta of a chain.
struct DeltaStep {
  std::shared_ptr<const VersionContent> target;  // delta_target() of the step before, or the base
  const DeltaIndex* index = nullptr;
  // The payload of a row of the index: a view, or `scratch`, filled. Requires: scratch.size() is
  // the payload's. Thread-safe. Blocks.
  std::function<Result<std::span<const std::byte>>(std::size_t row, std::span<std::byte> scratch)>
      blocking_read{};
};

// Takes how a block of a tensor differs from the base's. Thread-safe.
using PatchSink = std::function<Result<void>(const BlockPlace& place, DeltaPatch patch)>;

struct DeltaApplyOptions {
  unsigned threads = 1;
  // Bytes of the last target that are there and verified, out of all; called from the calling
  // thread.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};
  // Where given, a block of a tensor that one delta makes of one of the base's goes here and not
  // to the sink, and nobody makes and hashes it: proven are the delta's own digest and that of the
  // values which it replaces.
  PatchSink patch_sink{};
};

// Writes the target of the last step into `sink`, which was prepared for it and has the blocks
// `held`, in order, already. Every block is held to its digest before it is written, those that
// come out of each step too (but see `patch_sink`). Memory for each thread: three blocks, a payload
// and what decode_delta() needs. Blocks. Requires: at least one step. Errors: kConflict: the base's
// bytes are not its digests'; kCorrupt: a payload is broken; both naming version, tensor and block.
// Those of base, sink and steps.
Result<void> blocking_apply_deltas(const VersionBlocks& base, std::span<const DeltaStep> steps,
                                   PullTarget& sink, std::span<const BlockPlace> held = {},
                                   const DeltaApplyOptions& options = {});

}  // namespace weft
