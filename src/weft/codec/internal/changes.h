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

// Writes the changes that `bits` tells to `out` from index `at` on; returns the index behind them.
// Element 0 of `base` and `next` has the position `first`.
template <typename T>
std::size_t put_changes(const std::byte* base, const std::byte* next, std::uint64_t bits,
                        std::size_t first, std::size_t at, Changes<T>& out) {
  for (; bits != 0; bits &= bits - 1, ++at) {
    const auto i = static_cast<std::size_t>(std::countr_zero(bits));
    out.positions[at] = static_cast<std::uint32_t>(first + i);
    out.old[at] = load<T>(base + i * sizeof(T));
    out.next[at] = load<T>(next + i * sizeof(T));
  }
  return at;
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
    std::size_t more = changed_bits(a, b, sizeof(T), whole, bits.data());
    if (whole < count) bits[whole / kWord] = 0;
    for (std::size_t i = whole; i < count; ++i) {
      const bool differs = load<T>(a + i * sizeof(T)) != load<T>(b + i * sizeof(T));
      bits[i / kWord] |= std::uint64_t{differs} << (i % kWord);
      more += differs ? 1 : 0;
    }
    out.positions.resize(found + more);
    out.old.resize(found + more);
    out.next.resize(found + more);
    for (std::size_t i = 0; i < count; i += kWord) {
      found =
          put_changes(a + i * sizeof(T), b + i * sizeof(T), bits[i / kWord], begin + i, found, out);
    }
  }
  return out;
}

}  // namespace weft::internal
