#include "weft/transfer/version_layout.h"

#include <algorithm>
#include <limits>

namespace weft {

Result<VersionLayout> VersionLayout::create(const Manifest& manifest) {
  VersionLayout layout;
  layout.tensors_ = manifest.tensors.size();
  std::vector<std::uint64_t> sizes_bytes;
  for (const ManifestTensor& tensor : manifest.tensors) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(tensor.spec));
    sizes_bytes.push_back(size_bytes);
  }
  for (const ManifestFile& file : manifest.files) sizes_bytes.push_back(file.size_bytes);
  layout.begins_.push_back(0);
  for (const std::uint64_t size_bytes : sizes_bytes) {
    const std::uint64_t begin = layout.begins_.back();
    if (size_bytes > std::numeric_limits<std::uint64_t>::max() - begin) {
      return Error(ErrorCode::kInvalidArgument, "the version is larger than 64 bits can say");
    }
    layout.begins_.push_back(begin + size_bytes);
  }
  return layout;
}

Result<void> VersionLayout::append(const VersionData& data, std::uint64_t offset_bytes,
                                   std::uint64_t size_bytes,
                                   std::vector<http::BodyPart>& parts) const {
  // The first entry that ends after the offset: empty ones before it are passed over.
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), offset_bytes);
  auto entry = static_cast<std::size_t>(after - begins_.begin()) - 1;
  while (size_bytes > 0) {
    const std::uint64_t in_entry = offset_bytes - begins_[entry];
    const std::uint64_t here = std::min(size_bytes, begins_[entry + 1] - offset_bytes);
    if (here > 0) WEFT_TRY_VOID(data.append(entry, in_entry, here, parts));
    offset_bytes += here;
    size_bytes -= here;
    ++entry;
  }
  return {};
}

}  // namespace weft
