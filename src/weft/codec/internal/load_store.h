#pragma once
// Integers of any width from and to bytes at any address, and what the passes over them share.
// Little-endian, as everything on the wire.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "weft/base/check.h"

namespace weft::internal {

static_assert(std::endian::native == std::endian::little, "values are copied as they are stored");

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

// Calls `f` with a zero of the unsigned integer of `elem_bytes`.
template <typename F>
auto with_element(std::size_t elem_bytes, F f) {
  switch (elem_bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      WEFT_CHECK(elem_bytes == 8);
      return f(std::uint64_t{});
  }
}

// Asks for the cache lines of `size_bytes` that lie this far ahead of `at`; they may be anybody's
// or nobody's. So memory works while a pass computes, and does not stop where a page ends. Source:
// measured, a quarter of the time of a pass that does little besides.
inline constexpr std::size_t kAheadBytes = 4096;
template <int kForWriting = 0>
void prefetch_ahead(const std::byte* at, std::size_t size_bytes) {
  constexpr std::size_t kLineBytes = 64;
  const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(at) + kAheadBytes;
  for (std::size_t i = 0; i < size_bytes; i += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + i), kForWriting);
  }
}

}  // namespace weft::internal
