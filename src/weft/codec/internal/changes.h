#pragma once
// The elements in which two blocks differ.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/codec/internal/load_store.h"
#include "weft/codec/internal/scan.h"

namespace weft::internal {

template <typename T>
struct Changes {
  std::vector<std::uint32_t> positions;  // ascending
  std::vector<T> old;                    // what `base` has there
  std::vector<T> next;
};

template <typename T>
void append_changes(const std::byte* base, const std::byte* next, std::uint64_t bits,
                    std::uint32_t first, std::size_t at, Changes<T>& out) {
  for (; bits != 0; bits &= bits - 1, ++at) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(bits));
    out.positions[at] = first + i;
    out.old[at] = load<T>(base + i * sizeof(T));
    out.next[at] = load<T>(next + i * sizeof(T));
  }
}

template <typename T>
Changes<T> find_changes(std::span<const std::byte> base, std::span<const std::byte> next) {
  constexpr std::size_t kChunk = 4096;  // elements, looked through while they are in the cache
  constexpr std::size_t kWord = 64;
  const std::size_t elements = base.size() / sizeof(T);
  Changes<T> out;
  std::size_t found = 0;
  std::array<std::uint64_t, kChunk / kWord> bits;
  for (std::size_t begin = 0; begin < elements; begin += kChunk) {
    const std::byte* const a = base.data() + begin * sizeof(T);
    const std::byte* const b = next.data() + begin * sizeof(T);
    const std::size_t count = std::min(kChunk, elements - begin);
    const std::size_t whole = count / kWord * kWord;
    changed_bits(a, b, sizeof(T), whole, bits.data());
    std::size_t words = whole / kWord;
    if (whole < count) {
      bits[words] = 0;
      for (std::size_t i = whole; i < count; ++i) {
        const bool differs = load<T>(a + i * sizeof(T)) != load<T>(b + i * sizeof(T));
        bits[words] |= std::uint64_t{differs} << (i - whole);
      }
      ++words;
    }
    std::size_t more = 0;
    for (std::size_t w = 0; w < words; ++w)
      more += static_cast<std::size_t>(std::popcount(bits[w]));
    out.positions.resize(found + more);
    out.old.resize(found + more);
    out.next.resize(found + more);
    for (std::size_t w = 0; w < words; ++w) {
      const std::size_t offset = w * kWord * sizeof(T);
      append_changes<T>(a + offset, b + offset, bits[w],
                        static_cast<std::uint32_t>(begin + w * kWord), found, out);
      found += static_cast<std::size_t>(std::popcount(bits[w]));
    }
  }
  return out;
}

}  // namespace weft::internal
