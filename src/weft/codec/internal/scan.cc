#include "weft/codec/internal/scan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "weft/codec/internal/elements.h"
#include "weft/codec/internal/load_store.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/codec/internal/scan.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DI8 = hn::ScalableTag<std::int8_t>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DI8());
static_assert(kSegment % kLanes == 0);

// The mask's bits in a register. Not through one array of them all: a load of several stores that
// are still under way waits for them.
#if HWY_TARGET != HWY_SCALAR
template <class D, class Mask>
HWY_INLINE std::uint64_t bits_of(D d, Mask mask) {
  constexpr std::size_t kBits = hn::MaxLanes(D());
  static_assert(kBits >= 8 && kBits <= 64);
  using Upto16 = std::conditional_t<kBits == 8, std::uint8_t, std::uint16_t>;
  using Over16 = std::conditional_t<kBits == 32, std::uint32_t, std::uint64_t>;
  std::conditional_t<(kBits <= 16), Upto16, Over16> bits;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}
#endif

template <typename T>
HWY_INLINE std::uint64_t changed_word(const std::byte* a, const std::byte* b) {
  std::uint64_t word = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) <= 2) {
    const hn::ScalableTag<T> d;
    constexpr std::size_t kStep = hn::MaxLanes(hn::ScalableTag<T>());
    for (std::size_t i = 0; i < 64; i += kStep) {
      const auto va = hn::LoadU(d, reinterpret_cast<const T*>(a + i * sizeof(T)));
      const auto vb = hn::LoadU(d, reinterpret_cast<const T*>(b + i * sizeof(T)));
      word |= bits_of(d, hn::Ne(va, vb)) << i;
    }
    return word;
  }
#endif
  for (std::size_t i = 0; i < 64; ++i) {
    const bool differs = load<T>(a + i * sizeof(T)) != load<T>(b + i * sizeof(T));
    word |= std::uint64_t{differs} << i;
  }
  return word;
}

template <typename T>
std::size_t changed_words(const std::byte* a, const std::byte* b, std::size_t count,
                          std::uint64_t* bits) {
  std::size_t changed = 0;
  for (std::size_t i = 0; i < count; i += 64) {
    prefetch_ahead(a + i * sizeof(T), 64 * sizeof(T));
    prefetch_ahead(b + i * sizeof(T), 64 * sizeof(T));
    bits[i / 64] = changed_word<T>(a + i * sizeof(T), b + i * sizeof(T));
    changed += static_cast<std::size_t>(std::popcount(bits[i / 64]));
  }
  return changed;
}

std::size_t changed_bits(const std::byte* a, const std::byte* b, std::size_t elem_bytes,
                         std::size_t count, std::uint64_t* bits) {
  switch (elem_bytes) {
    case 1:
      return changed_words<std::uint8_t>(a, b, count, bits);
    case 2:
      return changed_words<std::uint16_t>(a, b, count, bits);
    case 4:
      return changed_words<std::uint32_t>(a, b, count, bits);
    default:
      return changed_words<std::uint64_t>(a, b, count, bits);
  }
}

// Plain loops of which the compiler makes vectors.
template <typename T>
HWY_INLINE void keys_of(const std::byte* elements, unsigned shift, std::int8_t* keys) {
  for (std::size_t i = 0; i < kSegment; ++i) {
    const T bits = load<T>(elements + i * sizeof(T));
    const T key = static_cast<T>(static_cast<T>(bits << 1) >> (shift + 1));
    keys[i] = static_cast<std::int8_t>(static_cast<std::uint8_t>(key) ^ 0x80);
  }
}

void full_segment_keys(const std::byte* elements, ElemKind kind, std::int8_t* keys) {
  switch (kind) {
    case ElemKind::kBF16:
      return keys_of<std::uint16_t>(elements, 7, keys);
    case ElemKind::kF16:
      return keys_of<std::uint16_t>(elements, 10, keys);
    case ElemKind::kF32:
      return keys_of<std::uint32_t>(elements, 23, keys);
    case ElemKind::kF64:
      return keys_of<std::uint64_t>(elements, 55, keys);
    case ElemKind::kF8E4M3:
      return keys_of<std::uint8_t>(elements, 3, keys);
    case ElemKind::kF8E5M2:
      return keys_of<std::uint8_t>(elements, 2, keys);
    default:
      std::memset(keys, -128, kSegment);
  }
}

void all_keys(const std::byte* elements, ElemKind kind, std::size_t count, std::int8_t* keys) {
  if (count == kSegment) return full_segment_keys(elements, kind, keys);
  const std::size_t elem_bytes = traits_of(kind).elem_bytes;
  std::byte padded[kSegment * sizeof(std::uint64_t)] = {};
  std::memcpy(padded, elements, count * elem_bytes);
  full_segment_keys(padded, kind, keys);
  std::memset(keys + count, 127, kSegment - count);
}

// Bounds that are counted at once: their sums fit one 64-bit lane.
inline constexpr std::size_t kGroup = 4;

// How many of the keys are below each bound.
HWY_INLINE void count_below(const std::int8_t* keys, const std::uint8_t* bounds,
                            std::uint16_t* below) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t g = 0; g < kGroup; ++g) {
    below[g] = static_cast<std::uint16_t>(std::count_if(
        keys, keys + kSegment, [&](std::int8_t key) { return key < bounds[g] - 128; }));
  }
#else
  const DI8 d;
  const hn::Repartition<std::uint8_t, DI8> du;
  const hn::Repartition<std::uint64_t, DI8> d64;
  const auto limit = [&](std::size_t g)
                         HWY_ATTR { return hn::Set(d, static_cast<std::int8_t>(bounds[g] - 128)); };
  const auto limit0 = limit(0), limit1 = limit(1), limit2 = limit(2), limit3 = limit(3);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (std::size_t i = 0; i < kSegment; i += kLanes) {  // at most 16 rounds: no lane overflows
    const auto key = hn::LoadU(d, keys + i);
    sum0 = hn::Sub(sum0, hn::VecFromMask(d, hn::Lt(key, limit0)));
    sum1 = hn::Sub(sum1, hn::VecFromMask(d, hn::Lt(key, limit1)));
    sum2 = hn::Sub(sum2, hn::VecFromMask(d, hn::Lt(key, limit2)));
    sum3 = hn::Sub(sum3, hn::VecFromMask(d, hn::Lt(key, limit3)));
  }
  const auto eights = [&](auto sum) HWY_ATTR { return hn::SumsOf8(hn::BitCast(du, sum)); };
  const auto low = hn::Add(eights(sum0), hn::ShiftLeft<16>(eights(sum1)));
  const auto high = hn::Add(eights(sum2), hn::ShiftLeft<16>(eights(sum3)));
  const auto all = hn::SumOfLanes(d64, hn::Add(low, hn::ShiftLeft<32>(high)));
  store(reinterpret_cast<std::byte*>(below), hn::GetLane(all));
#endif
}

// The keys, and for each class how many of them are of it or of one before it.
HWY_INLINE void counts_up_to(const std::byte* elements, ElemKind kind, std::size_t count,
                             const ClassBounds& classes, std::int8_t* keys, std::uint16_t* up_to) {
  all_keys(elements, kind, count, keys);
  const std::size_t bounds = classes.classes - 1;
  for (std::size_t c = 0; c < bounds; c += kGroup) {
    count_below(keys, classes.bounds.data() + c, up_to + c);
  }
  up_to[bounds] = static_cast<std::uint16_t>(count);
}

void counts_of(const std::byte* elements, ElemKind kind, std::size_t count,
               const ClassBounds& classes, std::int8_t* keys, std::uint32_t* counts) {
  std::uint16_t up_to[kMostClasses];
  counts_up_to(elements, kind, count, classes, keys, up_to);
  std::uint32_t before = 0;
  for (std::size_t c = 0; c < classes.classes; ++c) {
    counts[c] = up_to[c] - before;
    before = up_to[c];
  }
}

// Bit i: element i is of class `c`.
HWY_INLINE SegmentBits class_bits(const std::int8_t* keys, const ClassBounds& classes,
                                  std::size_t c) {
  const auto least = static_cast<std::int8_t>(c == 0 ? -128 : classes.bounds[c - 1] - 128);
  const auto most =
      static_cast<std::int8_t>(c + 1 == classes.classes ? 127 : classes.bounds[c] - 129);
  SegmentBits bits{};
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < kSegment; ++i) {
    bits[i / 64] |= std::uint64_t{least <= keys[i] && keys[i] <= most} << (i % 64);
  }
#else
  const DI8 d;
  const auto low = hn::Set(d, least);
  const auto high = hn::Set(d, most);
  for (std::size_t i = 0; i < kSegment; i += kLanes) {
    const auto key = hn::LoadU(d, keys + i);
    const auto is_out = hn::Or(hn::Lt(key, low), hn::Gt(key, high));
    bits[i / 64] |= bits_of(d, hn::Not(is_out)) << (i % 64);
  }
#endif
  return bits;
}

HWY_INLINE unsigned ones(std::uint64_t word) {
  return static_cast<unsigned>(std::popcount(word));
}

void segment_ranks(const std::int8_t* keys, const ClassBounds& classes, const InSegment* elements,
                   std::size_t count, std::uint8_t* ranks) {
  SegmentBits bits[kMostClasses];
  std::uint32_t have_bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [element, c] = elements[i];
    if ((have_bits >> c & 1) == 0) bits[c] = class_bits(keys, classes, c);
    have_bits |= 1u << c;
    const std::size_t word = element / 64;
    unsigned rank = ones(bits[c][word] & ((std::uint64_t{1} << (element % 64)) - 1));
    for (std::size_t w = 0; w < word; ++w) rank += ones(bits[c][w]);
    ranks[i] = static_cast<std::uint8_t>(rank);
  }
}

// The bit that has `rank` set ones before it. Requires: there is one.
HWY_INLINE std::size_t select(const SegmentBits& bits, unsigned rank) {
  static_assert(kSegmentWords == 4);
  const unsigned one = ones(bits[0]), two = one + ones(bits[1]), three = two + ones(bits[2]);
  // Without branches: it may be any.
  const std::size_t w = (rank >= one ? 1 : 0) + (rank >= two ? 1 : 0) + (rank >= three ? 1 : 0);
  const unsigned before[kSegmentWords] = {0, one, two, three};
  std::uint64_t word = bits[w];
  for (rank -= before[w]; rank > 0; --rank) word &= word - 1;
  return 64 * w + static_cast<std::size_t>(std::countr_zero(word));
}

bool find_in_segment(const std::byte* elements, ElemKind kind, std::size_t count,
                     const ClassBounds& classes, ClassCursors& cursors, SegmentChanges& changes) {
  SegmentKeys keys;
  std::uint16_t up_to[kMostClasses];
  counts_up_to(elements, kind, count, classes, keys.data(), up_to);
  ClassCounts counts;
  std::uint32_t before = 0;
  std::uint32_t hits = 0;  // bit c: something changes in class c
  for (std::size_t c = 0; c < classes.classes; ++c) {
    counts[c] = up_to[c] - before;
    before = up_to[c];
    hits |= std::uint32_t{cursors.waits[c] < counts[c]} << c;
    cursors.waits[c] -= counts[c];
  }
  if (hits == 0) return false;
  changes.elements.fill(0);
  for (; hits != 0; hits &= hits - 1) {
    const auto c = static_cast<std::size_t>(std::countr_zero(hits));
    const SegmentBits bits = class_bits(keys.data(), classes, c);
    std::uint32_t rank = cursors.waits[c] + counts[c];
    do {
      const std::size_t i = select(bits, rank);
      changes.elements[i / 64] |= std::uint64_t{1} << (i % 64);
      changes.index[i] = cursors.next[c]++;
      rank += 1 + cursors.wait_for_next(c);
    } while (rank < counts[c]);
    cursors.waits[c] = rank - counts[c];
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::internal {

HWY_EXPORT(changed_bits);
HWY_EXPORT(all_keys);
HWY_EXPORT(counts_of);
HWY_EXPORT(segment_ranks);
HWY_EXPORT(find_in_segment);

std::size_t changed_bits(const std::byte* a, const std::byte* b, std::size_t elem_bytes,
                         std::size_t count, std::uint64_t* bits) {
  return HWY_DYNAMIC_DISPATCH(changed_bits)(a, b, elem_bytes, count, bits);
}

void segment_keys(const std::byte* elements, ElemKind kind, std::size_t count, SegmentKeys& keys) {
  HWY_DYNAMIC_DISPATCH(all_keys)(elements, kind, count, keys.data());
}

void segment_counts(const std::byte* elements, ElemKind kind, std::size_t count,
                    const ClassBounds& classes, SegmentKeys& keys, ClassCounts& counts) {
  HWY_DYNAMIC_DISPATCH(counts_of)
  (elements, kind, count, classes, keys.data(), counts.data());
}

void segment_ranks(const SegmentKeys& keys, const ClassBounds& classes,
                   std::span<const InSegment> elements, std::uint8_t* ranks) {
  HWY_DYNAMIC_DISPATCH(segment_ranks)
  (keys.data(), classes, elements.data(), elements.size(), ranks);
}

bool find_in_segment(const std::byte* elements, ElemKind kind, std::size_t count,
                     const ClassBounds& classes, ClassCursors& cursors, SegmentChanges& changes) {
  return HWY_DYNAMIC_DISPATCH(find_in_segment)(elements, kind, count, classes, cursors, changes);
}

}  // namespace weft::internal
#endif  // HWY_ONCE
