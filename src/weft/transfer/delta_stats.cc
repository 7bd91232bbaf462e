#include "weft/transfer/delta_stats.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "weft/codec/block_codec.h"
#include "weft/codec/delta_codec.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/internal/crew.h"

namespace weft {
namespace {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

Bytes xor_of(View a, View b) {
  Bytes bytes(a.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = a[i] ^ b[i];
  return bytes;
}

std::uint64_t count_changed(View a, View b, std::size_t elem_bytes) {
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < a.size(); i += elem_bytes) {
    changed += std::equal(&a[i], &a[i] + elem_bytes, &b[i]) ? 0 : 1;
  }
  return changed;
}

// Of one block that changes.
Result<DeltaEntryStats> blocking_measure(const VersionBlocks& base, const VersionBlocks& target,
                                         const DeltaPair& pair, const BlockPlace& place) {
  const Manifest& manifest = target.content().manifest;
  const auto length =
      static_cast<std::size_t>(block_length(entry_size_bytes(manifest, place.entry), place.block));
  const ElemKind kind = delta_kind(manifest, place.entry);
  const std::size_t elem_bytes = elem_size_bytes(kind);
  Bytes old_scratch(length), new_scratch(length);
  const auto base_entry = pair.try_base_entry(place.entry);
  View was = old_scratch;
  if (base_entry) {
    WEFT_TRY(was, base.blocking_read({*base_entry, place.block}, old_scratch));
  }
  WEFT_TRY(const View is, target.blocking_read(place, new_scratch));
  DeltaEntryStats stats;
  stats.changed = base_entry ? count_changed(was, is, elem_bytes) : length / elem_bytes;
  stats.bytes.identity = length;
  stats.bytes.zstd = encode_zstd(is).size();
  stats.bytes.xor_zstd = encode_zstd(xor_of(was, is)).size();
  stats.bytes.sparse = base_entry ? encode_sparse(was, is, elem_bytes).size() : length;
  stats.bytes.delta = encode_delta(was, is, kind).size();
  return stats;
}

}  // namespace

DeltaEntryStats& DeltaEntryStats::operator+=(const DeltaEntryStats& other) {
  elements += other.elements;
  changed += other.changed;
  bytes.identity += other.bytes.identity;
  bytes.zstd += other.bytes.zstd;
  bytes.xor_zstd += other.bytes.xor_zstd;
  bytes.sparse += other.bytes.sparse;
  bytes.delta += other.bytes.delta;
  return *this;
}

Result<std::vector<DeltaEntryStats>> blocking_delta_stats(
    const VersionBlocks& base, const VersionBlocks& target, unsigned threads,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  const DeltaPair pair(base.content(), target.content());
  const Manifest& manifest = target.content().manifest;
  std::vector<DeltaEntryStats> entries(entry_count(manifest));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].entry = i;
    entries[i].elements = entry_size_bytes(manifest, i) / elem_size_bytes(delta_kind(manifest, i));
  }
  const std::vector<BlockPlace> places = pair.changed_blocks();
  internal::Crew crew;
  std::optional<Error> failed;
  std::size_t next = 0;
  std::uint64_t done = 0;
  const auto work = [&](std::unique_lock<std::mutex>& lock) {
    while (!failed && next < places.size()) {
      const BlockPlace place = places[next++];
      lock.unlock();
      const auto measured = blocking_measure(base, target, pair, place);
      lock.lock();
      if (!measured) {
        failed = measured.error();
      } else {
        entries[place.entry] += *measured;
      }
      ++done;
      crew.change();
    }
  };
  crew.blocking_run(std::max(1u, threads), "weft-delta", work, [&] {
    if (progress) progress(done, places.size());
  });
  if (failed) return *std::move(failed);
  return entries;
}

}  // namespace weft
