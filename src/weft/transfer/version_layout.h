#pragma once
// VersionLayout: where each entry of a version lies in its *data*, all entries' bytes one after the
// other in manifest order (tensors, then files) without padding. Packs are cut from it. Immutable.

#include <cstdint>
#include <vector>

#include "weft/base/result.h"
#include "weft/format/manifest.h"
#include "weft/http/body.h"
#include "weft/protocol/block_frame.h"
#include "weft/transfer/version_source.h"

namespace weft {

class VersionLayout {
 public:
  // Errors: kInvalidArgument when the sizes overflow 64 bits.
  static Result<VersionLayout> create(const Manifest& manifest);

  std::size_t entries() const { return begins_.size() - 1; }
  std::uint64_t begin_bytes(std::size_t entry) const { return begins_[entry]; }
  std::uint64_t size_bytes(std::size_t entry) const { return begins_[entry + 1] - begins_[entry]; }
  std::uint64_t tensor_bytes() const { return begins_[tensors_]; }  // of all tensors
  std::uint64_t total_bytes() const { return begins_.back(); }
  std::uint64_t packs() const {
    return total_bytes() / kPackBytes + (total_bytes() % kPackBytes != 0 ? 1 : 0);
  }

  // Appends the parts that hold bytes [offset, offset + size) of the data. Requires: inside it.
  // Errors: those of VersionData::append.
  Result<void> append(const VersionData& data, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<http::BodyPart>& parts) const;

 private:
  std::size_t tensors_ = 0;
  std::vector<std::uint64_t> begins_;  // [entries + 1]
};

}  // namespace weft
