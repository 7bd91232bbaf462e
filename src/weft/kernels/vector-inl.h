// Loads of weights and of tails, exp, and sums across lanes, for the kernels. Included once for
// each target.

// Per-target include guard
#if defined(WEFT_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_VECTOR_INL_H_
#undef WEFT_KERNELS_VECTOR_INL_H_
#else
#define WEFT_KERNELS_VECTOR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "weft/tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = HWY_CAPPED(float, 16);
using DU32 = hn::Rebind<std::uint32_t, DF>;
using DU16 = hn::Rebind<std::uint16_t, DF>;
using V = hn::Vec<DF>;

// Constants and not calls: arrays of vectors need them. Scalable targets are disabled
// (CMakeLists.txt).
inline constexpr std::size_t kLanes = hn::MaxLanes(DF());
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr std::size_t kRegisters = 32;
#else
inline constexpr std::size_t kRegisters = 16;
#endif

// GCC keeps an array of vectors in memory unless the loops over it are gone early.
#undef WEFT_UNROLL
#if HWY_COMPILER_GCC_ACTUAL
#define WEFT_UNROLL _Pragma("GCC unroll 24")
#else
#define WEFT_UNROLL
#endif

// Elements of W at p + i * size: lanes 0, 1, ... in order.
struct Bf16 {
  static constexpr std::size_t kSize = 2;
  static HWY_INLINE V load(const std::byte* p) {
    const auto bits = hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(p));
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), bits)));
  }
};
struct F16 {
  static constexpr std::size_t kSize = 2;
  static HWY_INLINE V load(const std::byte* p) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
    // Highway's own substitute takes infinity for 65536. This is F. Giesen's half_to_float.
    const DU32 du;
    const auto half =
        hn::PromoteTo(du, hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(p)));
    const auto exponent_bits = hn::Set(du, 0x7C00u << 13);
    const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7FFFu)));
    const auto exponent = hn::And(shifted, exponent_bits);
    const auto biased = hn::Add(shifted, hn::Set(du, (127u - 15u) << 23));
    const auto special = hn::Add(biased, hn::Set(du, (128u - 16u) << 23));
    const auto denormal = hn::Sub(hn::BitCast(DF(), hn::Add(biased, hn::Set(du, 1u << 23))),
                                  hn::BitCast(DF(), hn::Set(du, 113u << 23)));
    auto bits = hn::IfThenElse(hn::Eq(exponent, exponent_bits), special, biased);
    bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), hn::BitCast(du, denormal), bits);
    return hn::BitCast(DF(), hn::Or(bits, hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)))));
#endif
  }
};
struct F32 {
  static constexpr std::size_t kSize = 4;
  static HWY_INLINE V load(const std::byte* p) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(p));
  }
};

// Calls f(Bf16()), f(F16()) or f(F32()).
template <class F>
HWY_INLINE void with_dtype(DType dtype, F&& f) {
  if (dtype == DType::kBF16) return f(Bf16());
  if (dtype == DType::kF16) return f(F16());
  f(F32());
}

// The first `count` (at most kLanes) lanes; the others are 0. Reads nothing past them.
template <class W>
HWY_INLINE V load_tail(const std::byte* p, std::size_t count) {
  HWY_ALIGN std::byte padded[kLanes * W::kSize] = {};
  std::memcpy(padded, p, count * W::kSize);
  return W::load(padded);
}
HWY_INLINE V load_tail(const float* p, std::size_t count) {
  HWY_ALIGN float padded[kLanes] = {};
  std::memcpy(padded, p, count * sizeof(float));
  return hn::Load(DF(), padded);
}
HWY_INLINE void store_tail(V v, float* p, std::size_t count) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, DF(), lanes);
  std::memcpy(p, lanes, count * sizeof(float));
}

// exp(x) to 2 ulp; NaN stays NaN, past 104 it is infinity. Highway's alone gives 0 for NaN and
// garbage there.
HWY_INLINE V exp_lanes(V x) {
  const DF d;
  const V y = hn::Exp(d, hn::Min(x, hn::Set(d, 104.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

HWY_INLINE float sum_lanes(V v) {
  return hn::GetLane(hn::SumOfLanes(DF(), v));
}
HWY_INLINE float max_lanes(V v) {
  return hn::GetLane(hn::MaxOfLanes(DF(), v));
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
