#pragma once
// The passes over whole blocks, in vectors: which elements differ, and how many are of each class.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/codec/delta_codec.h"

namespace weft::internal {

// Bit i of word i / 64 of `bits`: element i of `a` is not that of `b`. `count`: a multiple of 64.
// Returns how many bits are set.
std::size_t changed_bits(const std::byte* a, const std::byte* b, std::size_t elem_bytes,
                         std::size_t count, std::uint64_t* bits);

// Elements are counted in segments of so many.
inline constexpr std::size_t kSegment = 256;
inline constexpr std::size_t kSegmentWords = kSegment / 64;
inline constexpr std::size_t kMostClasses = 16;

// A class is a range of keys: class c has those from bound c - 1 up to, not including, bound c. The
// first begins at key 0, the last ends at 256.
struct ClassBounds {
  std::size_t classes = 1;
  std::array<std::uint8_t, kMostClasses> bounds{};  // ascending, the first classes - 1 count
};

// The keys of a segment, less 128, as the vectors compare them. Behind the end of a block they are
// those of the last class.
using SegmentKeys = std::array<std::int8_t, kSegment>;

using SegmentBits = std::array<std::uint64_t, kSegmentWords>;
using ClassCounts = std::array<std::uint32_t, kMostClasses>;

// The keys of `count` (at most kSegment) elements.
void segment_keys(const std::byte* elements, ElemKind kind, std::size_t count, SegmentKeys& keys);
// Also how many of the `count` are of each class.
void segment_counts(const std::byte* elements, ElemKind kind, std::size_t count,
                    const ClassBounds& classes, SegmentKeys& keys, ClassCounts& counts);

// An element of a segment and its class, for an encoder.
struct InSegment {
  std::uint8_t element;
  std::uint8_t class_index;
};
// For each of `elements`, how many before it in the segment are of its class.
void segment_ranks(const SegmentKeys& keys, const ClassBounds& classes,
                   std::span<const InSegment> elements, std::uint8_t* ranks);

// Where a decoder is in the changes of each class.
struct ClassCursors {
  static constexpr std::uint32_t kNever = 0x7FFFFFFF;  // no block has half as many elements

  const std::uint32_t* gaps = nullptr;
  // Of each class: elements of it until the next change; that change's index in `gaps`, and the
  // index behind its last.
  std::array<std::uint32_t, kMostClasses> waits{}, next{}, end{};

  std::uint32_t wait_for_next(std::size_t c) const {
    return next[c] < end[c] ? gaps[next[c]] : kNever;
  }
};
// What changes in a segment.
struct SegmentChanges {
  SegmentBits elements;
  std::array<std::uint32_t, kSegment> index;  // of the changes of those elements
};
// Moves the cursors behind a segment of `count` elements. Returns false if nothing changes in it.
bool find_in_segment(const std::byte* elements, ElemKind kind, std::size_t count,
                     const ClassBounds& classes, ClassCursors& cursors, SegmentChanges& changes);

}  // namespace weft::internal
