#pragma once
// Pulls a version as what changed since one that is at hand. docs/protocol.md, "plan" and "deltas".

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/transfer/delta_applier.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/version_blocks.h"

namespace weft {

struct DeltaPullOptions {
  unsigned threads = 2;
  unsigned retries = 3;  // of a call whose connection breaks
  std::chrono::milliseconds first_wait{100};
  // As of DeltaApplyOptions.
  PatchSink patch_sink{};
  // The source may be at making the delta: it is given so long.
  std::chrono::seconds wait{10};
  // As of PullOptions.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};
};

struct DeltaPull {
  std::optional<PullReport> report;  // where it was done; fetched_bytes: of indexes and packs
  std::size_t deltas = 0;            // how many it took
  // Why it was not: "" where the source offers no cheaper way than the version in full, else what
  // was wrong. A target that was prepared may have some right blocks then, and is not finished.
  std::string why_not;
};

// Asks for the cheapest way to `id` from `base`; where that is by deltas, goes it: block by block
// through all of them, with two packs of each in memory at most. Blocks. Errors: those of the
// target alone; whatever else is wrong is said in `why_not`, and a pull in full is the way then.
Result<DeltaPull> blocking_pull_deltas(http::Client& source, const std::string& id,
                                       const VersionBlocks& base, PullTarget& target,
                                       const DeltaPullOptions& options = {});

}  // namespace weft
