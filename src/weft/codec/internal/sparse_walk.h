#pragma once
// Along the base, from change to change.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/codec/internal/elements.h"
#include "weft/codec/internal/load_store.h"
#include "weft/codec/internal/scan.h"
#include "weft/codec/internal/sparse_form.h"

namespace weft::internal {

// Elements that are copied at once: so many stay in the cache until they were looked through.
inline constexpr std::size_t kStretch = 8 * kSegment;

// Calls on_stretch(first element, count) for each stretch of `base` in order, then
// on_change(index, position, old) for each change in it, ascending: each passes over its gap of
// elements since the one before. False: the base has fewer.
template <typename T, typename OnStretch, typename OnChange>
bool walk_gaps(std::span<const std::uint32_t> gaps, std::span<const std::byte> base,
               OnStretch on_stretch, OnChange on_change) {
  constexpr std::size_t kAhead = 16;  // changes whose elements are asked for
  const std::size_t elements = base.size() / sizeof(T);
  std::size_t i = 0, next = 0;  // change, and the first element that may be it
  std::size_t asked = 0, next_asked = 0;
  for (std::size_t begin = 0; begin < elements; begin += kStretch) {
    const std::size_t end = std::min(begin + kStretch, elements);
    on_stretch(begin, end - begin);
    for (; i < gaps.size() && next + gaps[i] < end; ++i) {
      for (; asked < std::min(i + kAhead, gaps.size()); ++asked) {
        next_asked += gaps[asked];
        __builtin_prefetch(base.data() + next_asked++ * sizeof(T));
      }
      const std::size_t position = next + gaps[i];
      on_change(i, position, load<T>(base.data() + position * sizeof(T)));
      next = position + 1;
    }
  }
  return i == gaps.size();
}

// Where the changes of `streams` are in `base`. Calls on_stretch(first element, count) for each
// segment in order, then on_change(position, old, next) for each change in it, ascending. False:
// the base has fewer elements of a class than the changes pass over.
template <typename T, typename OnStretch, typename OnChange>
bool walk_changes(const SparseStreams<T>& streams, std::span<const std::byte> base, ElemKind kind,
                  OnStretch on_stretch, OnChange on_change) {
  const ElementRule<T> rule(kind);
  if (streams.classes.classes == 1) {  // the gaps alone say where the changes are
    const auto step = [&](std::size_t i, std::size_t position, T old) {
      on_change(position, old, rule.stepped(old, streams.steps[i]));
    };
    return walk_gaps<T>(streams.gaps, base, on_stretch, step);
  }
  ClassCursors cursors;
  cursors.gaps = streams.gaps.data();
  for (std::size_t c = 0; c < kMostClasses; ++c) {
    cursors.next[c] = streams.first[c];
    cursors.end[c] = streams.first[c + 1];
    cursors.waits[c] = cursors.wait_for_next(c);
  }
  SegmentChanges changes;
  const std::size_t elements = base.size() / sizeof(T);
  for (std::size_t begin = 0; begin < elements; begin += kSegment) {
    const std::size_t count = std::min(kSegment, elements - begin);
    if (begin % kStretch == 0) on_stretch(begin, std::min(kStretch, elements - begin));
    const std::byte* const segment = base.data() + begin * sizeof(T);
    prefetch_ahead(segment, kSegment * sizeof(T));
    if (!find_in_segment(segment, kind, count, streams.classes, cursors, changes)) continue;
    for (std::size_t w = 0; w < kSegmentWords; ++w) {
      for (std::uint64_t bits = changes.elements[w]; bits != 0; bits &= bits - 1) {
        const std::size_t i = 64 * w + static_cast<std::size_t>(std::countr_zero(bits));
        const T old = load<T>(segment + i * sizeof(T));
        on_change(begin + i, old, rule.stepped(old, streams.steps[changes.index[i]]));
      }
    }
  }
  return cursors.next == cursors.end;
}

}  // namespace weft::internal
