#include "weft/kernels/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "weft/base/check.h"

namespace weft::kernels {
namespace {

// Plain loops, without branches where it counts: the compiler makes vectors of them, and memory is
// the limit.

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

float to_f32(float x) {
  return x;
}
float to_f32(Bf16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}

// F. Giesen's half_to_float, https://gist.github.com/rygorous/2156668; NaN made quiet.
float to_f32(F16 x) {
  constexpr std::uint32_t kExponent = 0x7C00u << 13;
  const std::uint32_t shifted = (x.bits & 0x7FFFu) << 13;
  const std::uint32_t exponent = shifted & kExponent;
  std::uint32_t bits = shifted + ((127u - 15u) << 23);
  const float denormal = std::bit_cast<float>(bits + (1u << 23)) - std::bit_cast<float>(113u << 23);
  const std::uint32_t quiet = shifted > kExponent ? 0x400000u : 0u;
  bits = exponent == kExponent ? (bits + ((128u - 16u) << 23)) | quiet : bits;
  bits = exponent == 0 ? std::bit_cast<std::uint32_t>(denormal) : bits;
  return std::bit_cast<float>(bits | ((x.bits & 0x8000u) << 16));
}

// The nearest fp32 of which the last bit says whether anything was lost (round to odd): rounding
// that again, to fewer bits, is as good as rounding the fp64 once. S. Boldo and G. Melquiond,
// Emulation of FMA and correctly rounded sums, 2008.
float to_f32_odd(double x) {
  const auto nearest = static_cast<float>(x);
  const auto back = static_cast<double>(nearest);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (back == x || std::isnan(x) || (bits & 1u) != 0) return nearest;
  // Even and inexact: the neighbour on the other side of x is odd. Magnitude bits count up away
  // from zero.
  const bool too_large = std::abs(back) > std::abs(x);
  return std::bit_cast<float>(too_large ? bits - 1 : bits + 1);
}

float narrow(float x) {
  return x;
}
float narrow(double x) {
  return to_f32_odd(x);
}
float narrow(Bf16 x) {
  return to_f32(x);
}
float narrow(F16 x) {
  return to_f32(x);
}

void from_f32(float x, Bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  out.bits = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

// F. Giesen's float_to_half_fast3_rtne, https://gist.github.com/rygorous/2156668; NaN keeps its
// upper bits.
void from_f32(float x, F16& out) {
  constexpr std::uint32_t kTooLarge = (127u + 16u) << 23;
  constexpr std::uint32_t kSmallestNormal = 113u << 23;
  constexpr std::uint32_t kDenormalMagic = (127u - 15u + 23u - 10u + 1u) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t special =
      magnitude > 0x7F800000u ? 0x7E00u | ((magnitude >> 13) & 0x3FFu) : 0x7C00u;
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kDenormalMagic);
  const std::uint32_t denormal = std::bit_cast<std::uint32_t>(shifted) - kDenormalMagic;
  const std::uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t half = magnitude < kSmallestNormal ? denormal : normal;
  half = magnitude >= kTooLarge ? special : half;
  out.bits = static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000u));
}

template <class From, class To>
To convert_one(From x) {
  if constexpr (std::is_same_v<To, double>) {
    return static_cast<double>(to_f32(x));
  } else if constexpr (std::is_same_v<To, float> && std::is_same_v<From, double>) {
    return static_cast<float>(x);
  } else if constexpr (std::is_same_v<To, float>) {
    return to_f32(x);
  } else {
    To out;
    from_f32(narrow(x), out);
    return out;
  }
}

template <class From, class To>
void convert_all(const std::byte* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From in;
    std::memcpy(&in, from + i * sizeof(From), sizeof(From));
    const To out = convert_one<From, To>(in);
    std::memcpy(to + i * sizeof(To), &out, sizeof(To));
  }
}

// Calls f with a value of the type that `dtype` names.
template <class F>
void with_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBF16:
      return f(Bf16());
    case DType::kF16:
      return f(F16());
    case DType::kF32:
      return f(float());
    case DType::kF64:
      return f(double());
    default:
      WEFT_CHECK(is_float(dtype));
  }
}

}  // namespace

void convert(std::span<const std::byte> from, DType from_dtype, std::span<std::byte> to,
             DType to_dtype) {
  const std::size_t count = from.size() / dtype_size_bytes(from_dtype);
  WEFT_CHECK(to.size() == count * dtype_size_bytes(to_dtype));
  if (count == 0) return;
  if (from_dtype == to_dtype) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  with_float(from_dtype, [&]<class From>(From) {
    with_float(to_dtype, [&]<class To>(To) {
      if constexpr (!std::is_same_v<From, To>) convert_all<From, To>(from.data(), to.data(), count);
    });
  });
}

void convert_to_f32(std::span<const std::byte> from, DType from_dtype, std::span<float> to) {
  convert(from, from_dtype, std::as_writable_bytes(to), DType::kF32);
}

}  // namespace weft::kernels
