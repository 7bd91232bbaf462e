#include "weft/transfer/changes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "weft/transfer/delta_object.h"

namespace weft {
namespace {

using Word = std::uint64_t;

constexpr std::size_t kChunkWords = 8;
using Chunk = std::array<Word, kChunkWords>;

// What of `size` bytes differs, as words; 0 behind them.
Chunk difference(const std::byte* a, const std::byte* b, std::size_t size) {
  Chunk x{}, y{};
  if (size == sizeof(Chunk)) {  // by far the most: a constant size is read in vectors
    std::memcpy(&x, a, sizeof(Chunk));
    std::memcpy(&y, b, sizeof(Chunk));
  } else {
    std::memcpy(&x, a, size);
    std::memcpy(&y, b, size);
  }
  for (std::size_t i = 0; i < kChunkWords; ++i) x[i] ^= y[i];
  return x;
}

// Appends the elements of `block` that differ from those of `base`. Little-endian.
void find_changes(std::size_t element_bytes, std::span<const std::byte> base,
                  std::span<const std::byte> block, std::int64_t first_element,
                  TensorChanges& out) {
  constexpr std::size_t kBits = 8;
  const Word element_mask =
      element_bytes < sizeof(Word) ? (Word{1} << kBits * element_bytes) - 1 : ~Word{0};
  for (std::size_t at = 0; at < block.size(); at += sizeof(Chunk)) {
    const Chunk differing =
        difference(&base[at], &block[at], std::min(sizeof(Chunk), block.size() - at));
    Word any = 0;
    for (const Word word : differing) any |= word;
    if (any == 0) continue;
    for (std::size_t word = 0; word < kChunkWords; ++word) {
      if (differing[word] == 0) continue;
      for (std::size_t i = 0; i < sizeof(Word); i += element_bytes) {
        if ((differing[word] >> kBits * i & element_mask) == 0) continue;
        const std::size_t place = at + word * sizeof(Word) + i;
        out.elements.push_back(first_element + static_cast<std::int64_t>(place / element_bytes));
      }
    }
  }
  out.values.resize(out.elements.size() * element_bytes);
  for (std::size_t i = 0; i < out.elements.size(); ++i) {
    const auto element = static_cast<std::size_t>(out.elements[i] - first_element);
    std::memcpy(&out.values[i * element_bytes], &block[element * element_bytes], element_bytes);
  }
}

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
    TensorChanges found{entry, {}, {}};
    find_changes(element, base, bytes, static_cast<std::int64_t>(offset_bytes / element), found);
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
