#include "weft/transfer/delta_applier.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/internal/crew.h"

namespace weft {
namespace {

using View = std::span<const std::byte>;

// A chain from the base to the last target.
struct Chain {
  Chain(const VersionBlocks& base_, std::span<const DeltaStep> steps_)
      : base(base_), steps(steps_) {
    const VersionContent* from = &base.content();
    for (const DeltaStep& step : steps) {
      pairs.emplace_back(*from, *step.target);
      from = step.target.get();
    }
  }

  const VersionBlocks& base;
  const std::span<const DeltaStep> steps;
  std::vector<DeltaPair> pairs;  // [steps]
};

std::optional<std::size_t> try_find_row(const DeltaIndex& index, const BlockPlace& place) {
  const auto at = [](const DeltaBlock& row) { return BlockPlace{row.entry, row.block}; };
  const auto found =
      std::lower_bound(index.blocks.begin(), index.blocks.end(), place,
                       [&](const DeltaBlock& row, const BlockPlace& p) { return at(row) < p; });
  if (found == index.blocks.end() || at(*found) != place) return std::nullopt;
  return static_cast<std::size_t>(found - index.blocks.begin());
}

// How a block of the last target comes about: from a block of the base, or from zeros, through the
// steps that change it.
struct Recipe {
  struct Change {
    std::size_t step, row;
    BlockPlace place;  // in the step's target
  };
  std::optional<BlockPlace> base;
  std::vector<Change> changes;
};

Recipe recipe_of(const Chain& chain, BlockPlace place) {
  Recipe recipe;
  for (std::size_t step = chain.steps.size(); step-- > 0;) {
    if (const auto row = try_find_row(*chain.steps[step].index, place)) {
      recipe.changes.insert(recipe.changes.begin(), {step, *row, place});
    }
    const auto entry = chain.pairs[step].try_base_entry(place.entry);
    if (!entry) return recipe;
    place.entry = *entry;
  }
  recipe.base = place;
  return recipe;
}

// Makes one block of the last target after the other. One thread.
class BlockMaker {
 public:
  BlockMaker(const Chain& chain, PullTarget& sink, const PatchSink& patch_sink)
      : chain_(chain),
        sink_(sink),
        patch_sink_(patch_sink),
        memory_(new std::byte[3 * kBlockBytes]) {}

  // Returns its length.
  Result<std::uint64_t> blocking_make(const BlockPlace& place) {
    const Recipe recipe = recipe_of(chain_, place);
    const VersionContent& target = *chain_.steps.back().target;
    length_ = static_cast<std::size_t>(
        block_length(entry_size_bytes(target.manifest, place.entry), place.block));
    WEFT_TRY(View bytes, blocking_read_base(recipe));
    const bool is_patch = patch_sink_ && recipe.base && recipe.changes.size() == 1 &&
                          place.entry < target.manifest.tensors.size();
    if (is_patch) {
      WEFT_TRY_VOID(blocking_patch(recipe, bytes));
      return std::uint64_t{length_};
    }
    const std::uint64_t offset = place.block * kBlockBytes;
    const auto out = sink_.place(place.entry, offset, memory(0));
    if (recipe.changes.empty()) {
      WEFT_TRY_VOID(check_base(*recipe.base, bytes));
      std::ranges::copy(bytes, out.begin());
    }
    for (std::size_t i = 0; i < recipe.changes.size(); ++i) {
      const bool is_last = i + 1 == recipe.changes.size();
      // What one step makes is the base of the next.
      const auto into = is_last ? out : memory(1 + i % 2);
      WEFT_TRY_VOID(blocking_change(recipe, i, bytes, into));
      bytes = into;
    }
    WEFT_TRY_VOID(sink_.blocking_write(place.entry, offset, out));
    return std::uint64_t{length_};
  }

 private:
  std::span<std::byte> memory(std::size_t which) {
    return {memory_.get() + which * kBlockBytes, length_};
  }

  // Into memory 2, which the first change does not write to.
  Result<View> blocking_read_base(const Recipe& recipe) {
    if (recipe.base) return chain_.base.blocking_read(*recipe.base, memory(2));
    std::ranges::fill(memory(2), std::byte{0});
    return View(memory(2));
  }

  Result<void> check_base(const BlockPlace& place, View bytes) const {
    const VersionContent& content = chain_.base.content();
    const std::uint64_t entry_bytes = entry_size_bytes(content.manifest, place.entry);
    if (block_digest(entry_bytes, place.block, bytes) == content.blocks[place.entry][place.block]) {
      return {};
    }
    return Error(ErrorCode::kConflict,
                 fmt::format("{}: its bytes are not the version's", block_words(content, place)));
  }

  Result<View> blocking_read_payload(const Recipe::Change& change) {
    const auto& [step, row, place] = change;
    payload_.resize(chain_.steps[step].index->blocks[row].payload_bytes);
    auto payload = chain_.steps[step].blocking_read(row, payload_);
    if (payload) return payload;
    return std::move(payload).error().with_context(words(change));
  }

  Result<void> blocking_change(const Recipe& recipe, std::size_t at, View base,
                               std::span<std::byte> out) {
    const auto& [step, row, place] = recipe.changes[at];
    WEFT_TRY(const View payload, blocking_read_payload(recipe.changes[at]));
    const Manifest& manifest = chain_.steps[step].target->manifest;
    const auto decoded = decode_delta(payload, base, delta_kind(manifest, place.entry), out);
    const std::uint64_t entry_bytes = entry_size_bytes(manifest, place.entry);
    const Digest& expected = chain_.steps[step].index->blocks[row].value;
    if (decoded && block_digest(entry_bytes, place.block, out) == expected) return {};
    return fault(recipe, at, base,
                 decoded ? "what it makes has another digest" : decoded.error().message());
  }

  // The first change, and the only one.
  Result<void> blocking_patch(const Recipe& recipe, View base) {
    const auto& [step, row, place] = recipe.changes[0];
    WEFT_TRY(const View payload, blocking_read_payload(recipe.changes[0]));
    auto patch =
        resolve_delta(payload, base, delta_kind(chain_.steps[step].target->manifest, place.entry));
    if (!patch) return fault(recipe, 0, base, patch.error().message());
    return patch_sink_(place, *std::move(patch));
  }

  std::string words(const Recipe::Change& change) const {
    return "delta of " + block_words(*chain_.steps[change.step].target, change.place);
  }

  // Whose fault is it? What came out of a step before is right.
  Error fault(const Recipe& recipe, std::size_t at, View base, const std::string& what) const {
    if (at == 0 && recipe.base) {
      if (auto right = check_base(*recipe.base, base); !right) return std::move(right).error();
    }
    return Error(ErrorCode::kCorrupt, fmt::format("{}: {}", words(recipe.changes[at]), what));
  }

  const Chain& chain_;
  PullTarget& sink_;
  const PatchSink& patch_sink_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::byte> payload_;
  std::size_t length_ = 0;
};

}  // namespace

Result<void> blocking_apply_deltas(const VersionBlocks& base, std::span<const DeltaStep> steps,
                                   PullTarget& sink, std::span<const BlockPlace> held,
                                   const DeltaApplyOptions& options) {
  WEFT_CHECK(!steps.empty());
  const Chain chain(base, steps);
  const VersionContent& target = *steps.back().target;
  std::uint64_t total_bytes = 0, done_bytes = 0;
  std::vector<BlockPlace> places;
  for (std::size_t entry = 0; entry < target.blocks.size(); ++entry) {
    const std::uint64_t entry_bytes = entry_size_bytes(target.manifest, entry);
    total_bytes += entry_bytes;
    for (std::size_t block = 0; block < target.blocks[entry].size(); ++block) {
      if (std::binary_search(held.begin(), held.end(), BlockPlace{entry, block})) {
        done_bytes += block_length(entry_bytes, block);
      } else {
        places.push_back({entry, block});
      }
    }
  }
  internal::Crew crew;
  std::optional<Error> failed;
  std::size_t next = 0;
  const auto work = [&](std::unique_lock<std::mutex>& lock) {
    BlockMaker maker(chain, sink, options.patch_sink);
    while (!failed && next < places.size()) {
      const BlockPlace place = places[next++];
      lock.unlock();
      auto made = maker.blocking_make(place);
      lock.lock();
      if (!made && !failed) failed = std::move(made).error();
      if (made) done_bytes += *made;
      crew.change();
    }
  };
  crew.blocking_run(std::max(1u, options.threads), "weft-apply", work, [&] {
    if (options.progress) options.progress(done_bytes, total_bytes);
  });
  if (failed) return *std::move(failed);
  return {};
}

}  // namespace weft
