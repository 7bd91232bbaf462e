#pragma once
// A delta that whoever holds versions offers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "weft/base/file.h"
#include "weft/base/result.h"
#include "weft/format/delta_index.h"

namespace weft {

// Immutable. Thread-safe.
class OfferedDelta {
 public:
  virtual ~OfferedDelta() = default;

  virtual const DeltaIndex& index() const = 0;
  virtual const std::string& index_bytes() const = 0;
  // Blocks for no more than the opening of a file. Requires: the index has it. Errors: kNotFound
  // when it is gone meanwhile; kCorrupt when it is not as long as the index says.
  virtual Result<std::shared_ptr<const File>> open_pack(std::size_t pack) const = 0;

  // Index and packs.
  std::uint64_t total_bytes() const { return index_bytes().size() + delta_payload_bytes(index()); }
};
using OfferedDeltaPtr = std::shared_ptr<const OfferedDelta>;

}  // namespace weft
