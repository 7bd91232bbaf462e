#pragma once
// Pairs of blocks for tests of the delta codec.

#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "weft/codec/delta_codec.h"

namespace weft::delta_test {

using Bytes = std::vector<std::byte>;
using Pair = std::pair<Bytes, Bytes>;

inline constexpr ElemKind kKinds[] = {
    ElemKind::kBits8, ElemKind::kBits16, ElemKind::kBits32, ElemKind::kBits64, ElemKind::kBF16,
    ElemKind::kF16,   ElemKind::kF32,    ElemKind::kF64,    ElemKind::kF8E4M3, ElemKind::kF8E5M2};

inline std::uint64_t element_at(const Bytes& bytes, std::size_t i, std::size_t elem_bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + i * elem_bytes, elem_bytes);
  return value;
}
inline void set_element(Bytes& bytes, std::size_t i, std::size_t elem_bytes, std::uint64_t value) {
  std::memcpy(bytes.data() + i * elem_bytes, &value, elem_bytes);
}

// The upper bits of a normally distributed float of the kind's exponent width, or of its integer.
inline std::uint64_t weight(ElemKind kind, std::mt19937_64& random) {
  const double x = std::normal_distribution<double>(0, 0.03)(random);
  const auto f = static_cast<float>(x);
  std::uint32_t f32;
  std::uint64_t f64;
  std::memcpy(&f32, &f, 4);
  std::memcpy(&f64, &x, 8);
  const std::uint64_t sign = f32 >> 31;
  const auto exponent = static_cast<int>(f32 >> 23 & 255) - 127;
  const auto narrow = [&](int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto field = static_cast<std::uint64_t>(std::max(exponent + bias, 0));
    return sign << (exponent_bits + mantissa_bits) | field << mantissa_bits |
           (f32 & 0x7FFFFF) >> (23 - mantissa_bits);
  };
  switch (kind) {
    case ElemKind::kBF16:
      return f32 >> 16;
    case ElemKind::kF16:
      return narrow(5, 10);
    case ElemKind::kF32:
      return f32;
    case ElemKind::kF64:
      return f64;
    case ElemKind::kF8E4M3:
      return narrow(4, 3);
    case ElemKind::kF8E5M2:
      return narrow(5, 2);
    default:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(x * 1000));
  }
}

// Weights of which this share moves by -3 to 3 places, mostly by one.
inline Pair small_steps(ElemKind kind, std::size_t elements, double density, unsigned seed) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution is_changed(density);
  const std::size_t elem_bytes = elem_size_bytes(kind);
  Bytes base(elements * elem_bytes);
  for (std::size_t i = 0; i < elements; ++i) set_element(base, i, elem_bytes, weight(kind, random));
  Bytes next = base;
  constexpr std::int64_t kSteps[] = {1, 1, 1, 1, -1, -1, -1, -1, 2, -2, 3, -3};
  for (std::size_t i = 0; i < elements; ++i) {
    if (!is_changed(random)) continue;
    const auto step = static_cast<std::uint64_t>(kSteps[random() % std::size(kSteps)]);
    set_element(next, i, elem_bytes, element_at(base, i, elem_bytes) + step);
  }
  return {base, next};
}

// All bits of all elements are drawn; of `next` this share is drawn again.
inline Pair any_bits(ElemKind kind, std::size_t elements, double density, unsigned seed) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution is_changed(density);
  const std::size_t elem_bytes = elem_size_bytes(kind);
  Bytes base(elements * elem_bytes);
  for (std::size_t i = 0; i < elements; ++i) set_element(base, i, elem_bytes, random());
  Bytes next = base;
  for (std::size_t i = 0; i < elements; ++i) {
    if (is_changed(random)) set_element(next, i, elem_bytes, random());
  }
  return {base, next};
}

}  // namespace weft::delta_test
