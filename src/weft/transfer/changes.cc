#include "weft/transfer/changes.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/core.h>

#include "weft/codec/elem_kind.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/internal/crew.h"

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
    const auto base =
        weights_.tensor(entry).subspan(static_cast<std::size_t>(offset_bytes), bytes.size());
    const std::size_t element = dtype_size_bytes(weights_.layout().tensors()[entry].dtype);
    return take({entry, offset_bytes / kBlockBytes}, find_patch(base, bytes, element));
  }
  // Thread-safe.
  Result<void> take(const BlockPlace& place, DeltaPatch patch) {
    if (patch.positions.empty()) return {};
    const std::lock_guard lock(mutex_);
    changed_bytes_ += patch.values.size();
    if (changed_bytes_ > limit_) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("more than {} bytes change, too many to tell one by one", limit_));
    }
    blocks_.push_back({place, std::move(patch)});
    return {};
  }
  Result<std::span<const std::byte>> blocking_read(std::size_t, std::uint64_t,
                                                   std::span<std::byte>) const override {
    return Error(ErrorCode::kInternal, "changes are not read back");
  }
  Result<void> blocking_finish() override { return {}; }

  VersionChanges finish() {
    std::ranges::sort(blocks_, {}, &BlockChanges::place);
    return {content_, std::move(blocks_), std::move(files_)};
  }

 private:
  const VersionContent& base_;
  const WeightSet& weights_;
  std::shared_ptr<const VersionContent> content_;
  std::map<std::string, std::string> files_;
  std::uint64_t limit_ = 0;
  std::mutex mutex_;  // of what follows
  std::vector<BlockChanges> blocks_;
  std::uint64_t changed_bytes_ = 0;
};

bool blocking_is_right(const VersionChanges& changes, const WeightSet& weights, bool applied,
                       const BlockChanges& block, std::vector<std::byte>& scratch) {
  const auto& [entry, number] = block.place;
  std::span<const std::byte> bytes = block_of(weights.tensor(entry), number);
  if (!applied) {
    scratch.assign(bytes.begin(), bytes.end());
    apply_sparse(block.patch.view(delta_kind(changes.target->manifest, entry)), scratch);
    bytes = scratch;
  }
  return block_digest(weights.tensor(entry).size(), number, bytes) ==
         changes.target->blocks[entry][number];
}

}  // namespace

SparsePatch TensorChanges::view(const BlockChanges& block) const {
  return block.patch.view(elem_kind_of(spec_->dtype));
}

std::size_t TensorChanges::count() const {
  std::size_t count = 0;
  for (const BlockChanges& block : blocks_) count += block.patch.positions.size();
  return count;
}

std::vector<std::int64_t> TensorChanges::elements() const {
  std::vector<std::int64_t> elements;
  elements.reserve(count());
  for (const BlockChanges& block : blocks_) {
    const auto first =
        static_cast<std::int64_t>(block.place.block * kBlockBytes / dtype_size_bytes(spec_->dtype));
    for (const std::uint32_t position : block.patch.positions) elements.push_back(first + position);
  }
  return elements;
}

std::vector<std::byte> TensorChanges::values() const {
  std::vector<std::byte> values;
  values.reserve(count() * dtype_size_bytes(spec_->dtype));
  for (const BlockChanges& block : blocks_) {
    values.insert(values.end(), block.patch.values.begin(), block.patch.values.end());
  }
  return values;
}

Result<void> TensorChanges::check(std::span<const std::byte> memory) const {
  for (const BlockChanges& block : blocks_) {
    if (auto right = check_sparse_base(view(block), block_of(memory, block.place.block)); !right) {
      return std::move(right).error().with_context(
          fmt::format("tensor `{}`, block {}", spec_->name, block.place.block));
    }
  }
  return {};
}

std::vector<std::byte> TensorChanges::write(std::span<std::byte> memory) const {
  std::vector<std::byte> replaced, of_block;
  replaced.reserve(count() * dtype_size_bytes(spec_->dtype));
  for (const BlockChanges& block : blocks_) {
    apply_sparse(view(block), block_of(memory, block.place.block), &of_block);
    replaced.insert(replaced.end(), of_block.begin(), of_block.end());
  }
  return replaced;
}

void TensorChanges::undo(std::span<std::byte> memory, std::span<const std::byte> replaced) const {
  for (const BlockChanges& block : blocks_) {
    SparsePatch patch = view(block);
    patch.values = replaced.first(patch.values.size());
    replaced = replaced.subspan(patch.values.size());
    apply_sparse(patch, block_of(memory, block.place.block));
  }
}

std::vector<TensorChanges> VersionChanges::tensors() const {
  std::vector<TensorChanges> tensors;
  for (std::size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    const auto entry = blocks[begin].place.entry;
    while (end < blocks.size() && blocks[end].place.entry == entry) ++end;
    tensors.emplace_back(target->manifest.tensors[entry].spec,
                         std::span(blocks).subspan(begin, end - begin));
  }
  return tensors;
}

Result<PulledChanges> blocking_pull_changes(http::Client& source, const std::string& id,
                                            const VersionBlocks& base, const WeightSet& weights,
                                            const DeltaPullOptions& options) {
  ChangesTarget target(base.content(), weights);
  DeltaPullOptions own = options;
  own.patch_sink = [&](const BlockPlace& place, DeltaPatch patch) {
    return target.take(place, std::move(patch));
  };
  PulledChanges pulled;
  WEFT_TRY(pulled.pull, blocking_pull_deltas(source, id, base, target, own));
  if (pulled.pull.report) pulled.changes = target.finish();
  return pulled;
}

void apply_changes(const VersionChanges& changes, WeightSet& weights) {
  for (const BlockChanges& block : changes.blocks) {
    const auto& [entry, number] = block.place;
    apply_sparse(block.patch.view(delta_kind(changes.target->manifest, entry)),
                 block_of(weights.tensor(entry), number));
  }
}

Result<void> blocking_verify_changes(const VersionChanges& changes, const WeightSet& weights,
                                     bool applied, unsigned threads) {
  internal::Crew crew;
  std::optional<Error> failed;
  std::size_t next = 0;
  const auto work = [&](std::unique_lock<std::mutex>& lock) {
    std::vector<std::byte> scratch;
    while (!failed && next < changes.blocks.size()) {
      const BlockChanges& block = changes.blocks[next++];
      lock.unlock();
      const bool is_right = blocking_is_right(changes, weights, applied, block, scratch);
      lock.lock();
      if (is_right || failed) continue;
      failed =
          Error(ErrorCode::kCorrupt, fmt::format("{}: what a delta made of it has another digest",
                                                 block_words(*changes.target, block.place)));
    }
  };
  crew.blocking_run(std::max(1u, threads), "weft-verify", work);
  if (failed) return *std::move(failed);
  return {};
}

}  // namespace weft
