#include "weft/transfer/changes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "weft/codec/delta_codec.h"
#include "weft/transfer/delta_object.h"

namespace weft {
namespace {

// Blocks come, verified, into memory of the thread that makes them; what is kept is how they differ
// from the base.
class ChangesTarget final : public PullTarget {
 public:
  ChangesTarget(const VersionContent& base, const WeightSet& weights)
      : base_(base), weights_(weights) {}

  Result<Held> blocking_prepare(const std::string&, const Manifest& manifest,
                                const VersionDigests& digests) override {
    content_ = make_version_content(manifest, digests);
    const auto& ours = weights_.layout().tensors();
    if (!std::ranges::equal(manifest.tensors, ours, {}, &ManifestTensor::spec)) {
      return Error(ErrorCode::kConflict, "the version has other tensors than the one at hand");
    }
    const DeltaPair pair(base_, *content_);
    Held held;
    for (std::size_t entry = 0; entry < digests.size(); ++entry) {
      const bool is_file = entry >= ours.size();
      for (std::size_t block = 0; block < digests[entry].size(); ++block) {
        if (!is_file && !pair.is_changed({entry, block})) held.blocks.push_back({entry, block});
      }
    }
    for (const ManifestFile& file : manifest.files) {
      files_[file.name].resize(static_cast<std::size_t>(file.size_bytes));
    }
    limit_ = weights_.layout().payload_bytes() / kMaxChangedShare;
    return held;
  }

  std::span<std::byte> place(std::size_t, std::uint64_t, std::span<std::byte> scratch) override {
    return scratch;
  }

  Result<void> blocking_write(std::size_t entry, std::uint64_t offset_bytes,
                              std::span<const std::byte> bytes) override {
    const std::size_t tensors = content_->manifest.tensors.size();
    if (entry >= tensors) {
      std::string& text = files_.at(content_->manifest.files[entry - tensors].name);
      std::memcpy(text.data() + offset_bytes, bytes.data(), bytes.size());
      return {};
    }
    const std::size_t element = dtype_size_bytes(weights_.layout().tensors()[entry].dtype);
    const auto base =
        weights_.tensor(entry).subspan(static_cast<std::size_t>(offset_bytes), bytes.size());
    DeltaPatch patch = find_patch(base, bytes, element);
    TensorChanges found{entry, {}, std::move(patch.values)};
    const auto first = static_cast<std::int64_t>(offset_bytes / element);
    for (const std::uint32_t position : patch.positions) found.elements.push_back(first + position);
    const std::lock_guard lock(mutex_);
    changed_bytes_ += found.values.size();
    if (changed_bytes_ > limit_) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("more than {} bytes change, too many to tell one by one", limit_));
    }
    blocks_.emplace(BlockPlace{entry, offset_bytes}, std::move(found));
    return {};
  }
  Result<std::span<const std::byte>> blocking_read(std::size_t, std::uint64_t,
                                                   std::span<std::byte>) const override {
    return Error(ErrorCode::kInternal, "changes are not read back");
  }
  Result<void> blocking_finish() override { return {}; }

  VersionChanges take() {
    VersionChanges changes{content_, {}, std::move(files_)};
    for (auto& [place, found] : blocks_) {
      if (found.elements.empty()) continue;
      if (changes.tensors.empty() || changes.tensors.back().tensor != found.tensor) {
        changes.tensors.push_back(std::move(found));
        continue;
      }
      TensorChanges& into = changes.tensors.back();
      into.elements.insert(into.elements.end(), found.elements.begin(), found.elements.end());
      into.values.insert(into.values.end(), found.values.begin(), found.values.end());
    }
    return changes;
  }

 private:
  const VersionContent& base_;
  const WeightSet& weights_;
  std::shared_ptr<const VersionContent> content_;
  std::map<std::string, std::string> files_;
  std::uint64_t limit_ = 0;
  std::mutex mutex_;                            // of what follows
  std::map<BlockPlace, TensorChanges> blocks_;  // by entry and byte
  std::uint64_t changed_bytes_ = 0;
};

}  // namespace

Result<PulledChanges> blocking_pull_changes(http::Client& source, const std::string& id,
                                            const VersionBlocks& base, const WeightSet& weights,
                                            const DeltaPullOptions& options) {
  ChangesTarget target(base.content(), weights);
  PulledChanges pulled;
  WEFT_TRY(pulled.pull, blocking_pull_deltas(source, id, base, target, options));
  if (pulled.pull.report) pulled.changes = target.take();
  return pulled;
}

void apply_changes(const VersionChanges& changes, WeightSet& weights) {
  for (const TensorChanges& tensor : changes.tensors) {
    const auto out = weights.tensor(tensor.tensor);
    const std::size_t element = dtype_size_bytes(weights.layout().tensors()[tensor.tensor].dtype);
    for (std::size_t i = 0; i < tensor.elements.size(); ++i) {
      std::memcpy(&out[static_cast<std::size_t>(tensor.elements[i]) * element],
                  &tensor.values[i * element], element);
    }
  }
}

}  // namespace weft
