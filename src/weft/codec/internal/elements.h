#pragma once
// What an element's bits mean to the delta codec: its key, and its place among the values of its
// type. docs/formats/delta.md, "Elements".

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "weft/codec/delta_codec.h"

namespace weft::internal {

// A float's key is its exponent field: `exponent_bits` under the sign, `mantissa_bits` above the
// bottom; of F64's the upper 8 bits. What has no exponent has the key 0.
struct KindTraits {
  unsigned elem_bytes;
  bool is_float;
  unsigned key_shift;  // the key is (bits without the sign) >> key_shift
};
constexpr KindTraits traits_of(ElemKind kind) {
  switch (kind) {
    case ElemKind::kBits8:
      return {1, false, 0};
    case ElemKind::kBits16:
      return {2, false, 0};
    case ElemKind::kBits32:
      return {4, false, 0};
    case ElemKind::kBits64:
      return {8, false, 0};
    case ElemKind::kBF16:
      return {2, true, 7};
    case ElemKind::kF16:
      return {2, true, 10};
    case ElemKind::kF32:
      return {4, true, 23};
    case ElemKind::kF64:
      return {8, true, 55};
    case ElemKind::kF8E4M3:
      return {1, true, 3};
    case ElemKind::kF8E5M2:
      return {1, true, 2};
  }
  return {1, false, 0};
}

inline constexpr std::size_t kKeys = 256;

template <typename T>
struct ElementRule {
  static constexpr unsigned kBits = 8 * sizeof(T);
  static constexpr T kSign = static_cast<T>(T{1} << (kBits - 1));

  bool is_float;
  unsigned key_shift;

  explicit ElementRule(ElemKind kind)
      : is_float(traits_of(kind).is_float), key_shift(traits_of(kind).key_shift) {}

  unsigned key(T bits) const {
    return is_float ? static_cast<unsigned>((bits & static_cast<T>(~kSign)) >> key_shift) : 0;
  }
  // Floats in the order of their values as unsigned wrapping integers, -0 before +0; its own
  // inverse.
  T ordered(T bits) const {
    const bool flips = is_float && (bits & kSign) != 0;
    return flips ? static_cast<T>(bits ^ static_cast<T>(~kSign)) : bits;
  }
  // The number that says how `old` became `next`, which differs: 0, 1, 2, ... for steps of -1, +1,
  // -2, ... in that order.
  T step_number(T old, T next) const {
    const T d = static_cast<T>(ordered(next) - ordered(old));
    const T zigzag = static_cast<T>(static_cast<T>(d << 1) ^ ((d & kSign) != 0 ? ~T{0} : T{0}));
    return static_cast<T>(zigzag - 1);
  }
  T stepped(T old, T number) const {
    const T zigzag = static_cast<T>(number + 1);
    const T d = static_cast<T>((zigzag >> 1) ^ static_cast<T>(T{0} - (zigzag & 1)));
    return ordered(static_cast<T>(ordered(old) + d));
  }
};

}  // namespace weft::internal
