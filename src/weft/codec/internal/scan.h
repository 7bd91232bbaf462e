#pragma once
// The passes over whole blocks, in vectors: which elements differ, and how many are of each class.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/codec/delta_codec.h"

namespace weft::internal {

// Bit i of word i / 64 of `bits`: element i of `a` is not that of `b`. `count`: a multiple of 64.
void changed_bits(const std::byte* a, const std::byte* b, std::size_t elem_bytes, std::size_t count,
                  std::uint64_t* bits);

// Elements are counted in segments of so many.
inline constexpr std::size_t kSegment = 256;
inline constexpr std::size_t kSegmentWords = kSegment / 64;
inline constexpr std::size_t kMostClasses = 16;

// A class is a range of keys: class c has those from bound c - 1 up to, not including, bound c. The
// first begins at key 0, the last ends at 256.
struct ClassBounds {
  std::size_t classes = 1;
  std::array<std::uint8_t, kMostClasses - 1> bounds{};  // ascending, the first classes - 1
};

// The keys of a segment, less 128, as the vectors compare them. Behind the end of a block they are
// those of the last class.
using SegmentKeys = std::array<std::int8_t, kSegment>;

// The keys of `count` (at most kSegment) elements.
void segment_keys(const std::byte* elements, ElemKind kind, std::size_t count, SegmentKeys& keys);
// Also how many of the `count` are of each class.
void segment_counts(const std::byte* elements, ElemKind kind, std::size_t count,
                    const ClassBounds& classes, SegmentKeys& keys,
                    std::array<std::uint32_t, kMostClasses>& counts);
// Bit i: element i of the segment is of class `c`.
void class_bits(const SegmentKeys& keys, const ClassBounds& classes, std::size_t c,
                std::array<std::uint64_t, kSegmentWords>& bits);

}  // namespace weft::internal
