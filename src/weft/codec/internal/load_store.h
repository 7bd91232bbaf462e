#pragma once
// Integers of any width from and to bytes at any address. Little-endian, as everything on the wire.

#include <bit>
#include <cstddef>
#include <cstring>

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

}  // namespace weft::internal
