#pragma once
// MemoryVersions: a trainer's newest versions in its own memory, for engines to pull. docs/c.md,
// "Offer".

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "weft/base/result.h"
#include "weft/codec/delta_codec.h"
#include "weft/transfer/tensor_source.h"
#include "weft/transfer/version_source.h"

namespace weft {

struct OfferOptions {
  std::string label;  // "" for none
  unsigned threads = 2;
  bool delta = true;  // from the version before, where it has the same tensors
  DeltaGoal delta_goal = DeltaGoal::kFast;
  // Bytes that are taken over and hashed, out of all; from several threads.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};
};

struct OfferReport {
  std::string id;
  std::uint64_t total_bytes = 0;  // of the entries
  std::uint64_t delta_bytes = 0;  // 0 where there is none
  double hash_seconds = 0, delta_seconds = 0;
};

// Holds the newest version, which is the head `main`, and the one before; what is pulled stays as
// long as somebody reads it. Thread-safe.
class MemoryVersions : public VersionSource {
 public:
  static std::shared_ptr<MemoryVersions> make();

  // Copies the source and makes it the newest version; one call at a time. Memory: a set for each
  // version, of which the one that is let go is written over. Blocks. Errors: the source's;
  // kInvalidArgument; kOverloaded where there is no memory.
  virtual Result<OfferReport> blocking_offer(const TensorSource& source,
                                             const OfferOptions& options) = 0;
};

}  // namespace weft
