#include "weft/transfer/delta_object.h"

#include <map>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "weft/codec/elem_kind.h"

namespace weft {
namespace {

// [entries of the target]
std::vector<std::optional<std::size_t>> match_entries(const Manifest& base,
                                                      const Manifest& target) {
  std::map<std::string_view, std::size_t> tensors, files;
  for (std::size_t i = 0; i < base.tensors.size(); ++i) tensors[base.tensors[i].spec.name] = i;
  for (std::size_t i = 0; i < base.files.size(); ++i) files[base.files[i].name] = i;
  std::vector<std::optional<std::size_t>> matches(entry_count(target));
  for (std::size_t i = 0; i < target.tensors.size(); ++i) {
    const auto found = tensors.find(target.tensors[i].spec.name);
    if (found == tensors.end()) continue;
    if (base.tensors[found->second].spec == target.tensors[i].spec) matches[i] = found->second;
  }
  for (std::size_t i = 0; i < target.files.size(); ++i) {
    const auto found = files.find(target.files[i].name);
    if (found == files.end()) continue;
    if (base.files[found->second].size_bytes != target.files[i].size_bytes) continue;
    matches[target.tensors.size() + i] = base.tensors.size() + found->second;
  }
  return matches;
}

std::string entry_words(const std::string& id, const Manifest& manifest, std::size_t entry) {
  return fmt::format("version {}: {} `{}`", id, entry < manifest.tensors.size() ? "tensor" : "file",
                     entry_name(manifest, entry));
}

Error corrupt(const std::string& where, std::string_view what) {
  return {ErrorCode::kCorrupt, fmt::format("delta of {}: {}", where, what)};
}

BlockPlace place_of(const DeltaBlock& row) {
  return {row.entry, row.block};
}

// Hands out the rows of an index as the blocks of the target are gone through in order.
class Rows {
 public:
  Rows(const DeltaIndex& index, const std::string& id) : index_(index), id_(id) {}

  // The row of this block; null where it is not listed. Errors: kCorrupt for a row before it, which
  // is of no block of the target.
  Result<const DeltaBlock*> next(const BlockPlace& place) {
    if (left() == 0 || place_of(index_.blocks[used_]) > place) return nullptr;
    if (place_of(index_.blocks[used_]) < place) return stray();
    return &index_.blocks[used_++];
  }
  Result<void> finish() const {
    if (left() == 0) return {};
    return stray();
  }
  std::size_t left() const { return index_.blocks.size() - used_; }

 private:
  Error stray() const {
    const DeltaBlock& row = index_.blocks[used_];
    return corrupt("version " + id_,
                   fmt::format("it has no block {} of an entry {}", row.block, row.entry));
  }

  const DeltaIndex& index_;
  const std::string& id_;
  std::size_t used_ = 0;
};

Result<void> check_ids(const std::string& base, const std::string& target,
                       const DeltaIndex& index) {
  const std::string from = digest_text(index.base), to = digest_text(index.target);
  if (to != target) return corrupt("version " + to, "the version is " + target);
  if (from == base) return {};
  return Error(
      ErrorCode::kConflict,
      fmt::format("delta of version {}: it was made against {}, the base is {}", to, from, base));
}

Result<void> check_row(const DeltaPair& pair, const BlockPlace& place, const DeltaBlock* row) {
  const VersionContent& target = pair.target();
  const bool changed = pair.is_changed(place);
  if (row == nullptr) {
    if (!changed) return {};
    return corrupt(block_words(target, place), "is missing");
  }
  if (!changed) return corrupt(block_words(target, place), "is the base's, and yet there");
  if (row->value != target.blocks[place.entry][place.block]) {
    return corrupt(block_words(target, place), "is another block than the version's");
  }
  const std::uint64_t length =
      block_length(entry_size_bytes(target.manifest, place.entry), place.block);
  if (row->payload_bytes < kDeltaFrameBytes || row->payload_bytes > kDeltaFrameBytes + length) {
    return corrupt(
        block_words(target, place),
        fmt::format("a payload of {} bytes for a block of {}", row->payload_bytes, length));
  }
  return {};
}

}  // namespace

DeltaPair::DeltaPair(const VersionContent& base, const VersionContent& target)
    : base_(&base),
      target_(&target),
      base_entries_(match_entries(base.manifest, target.manifest)) {}

bool DeltaPair::is_changed(const BlockPlace& place) const {
  const auto entry = try_base_entry(place.entry);
  return !entry || base_->blocks[*entry][place.block] != target_->blocks[place.entry][place.block];
}

std::vector<BlockPlace> DeltaPair::changed_blocks() const {
  std::vector<BlockPlace> changed;
  for (std::size_t entry = 0; entry < target_->blocks.size(); ++entry) {
    for (std::size_t block = 0; block < target_->blocks[entry].size(); ++block) {
      if (is_changed({entry, block})) changed.push_back({entry, block});
    }
  }
  return changed;
}

ElemKind delta_kind(const Manifest& manifest, std::size_t entry) {
  if (entry >= manifest.tensors.size()) return ElemKind::kBits8;
  return elem_kind_of(manifest.tensors[entry].spec.dtype);
}

std::string block_words(const VersionContent& content, const BlockPlace& place) {
  return fmt::format("{}, block {}", entry_words(content.id, content.manifest, place.entry),
                     place.block);
}

Result<void> check_delta_index(const DeltaPair& pair, const DeltaIndex& index) {
  const VersionContent& target = pair.target();
  WEFT_TRY_VOID(check_ids(pair.base().id, target.id, index));
  Rows rows(index, target.id);
  for (std::size_t entry = 0; entry < target.blocks.size(); ++entry) {
    for (std::size_t block = 0; block < target.blocks[entry].size(); ++block) {
      WEFT_TRY(const DeltaBlock* const row, rows.next({entry, block}));
      WEFT_TRY_VOID(check_row(pair, {entry, block}, row));
    }
  }
  return rows.finish();
}

Result<std::shared_ptr<const VersionContent>> delta_target(const VersionContent& base,
                                                           Manifest manifest,
                                                           const DeltaIndex& index) {
  const std::string id = manifest_id(manifest);
  WEFT_TRY_VOID(check_ids(base.id, id, index));
  const auto matches = match_entries(base.manifest, manifest);
  std::vector<std::vector<Digest>> blocks;
  Rows rows(index, id);
  for (std::size_t entry = 0; entry < matches.size(); ++entry) {
    const std::uint64_t count = block_count(entry_size_bytes(manifest, entry));
    // So a manifest that says what it likes does not get more memory than the index has.
    if (!matches[entry] && count > rows.left()) {
      return corrupt(entry_words(id, manifest, entry),
                     "the base has none like it, and not all of "
                     "its blocks are there");
    }
    auto& values = blocks.emplace_back();
    for (std::uint64_t block = 0; block < count; ++block) {
      WEFT_TRY(const DeltaBlock* const row, rows.next({entry, block}));
      if (row == nullptr && !matches[entry]) {
        return corrupt(fmt::format("{}, block {}", entry_words(id, manifest, entry), block),
                       "is missing");
      }
      values.push_back(row != nullptr ? row->value : base.blocks[*matches[entry]][block]);
    }
    if (merge_block_digests(values) != entry_digest(manifest, entry)) {
      return corrupt(entry_words(id, manifest, entry),
                     "its blocks do not merge into the manifest's digest");
    }
  }
  WEFT_TRY_VOID(rows.finish());
  auto target = make_version_content(std::move(manifest), std::move(blocks));
  WEFT_TRY_VOID(check_delta_index(DeltaPair(base, *target), index));
  return target;
}

}  // namespace weft
