#include "weft/kernels/matmul.h"

#include <cstdint>

#include "weft/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernels/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "weft/kernels/dot-inl.h"
#include "weft/kernels/panel-inl.h"
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

// From this many rows on kFast uses panels: where unpacking W pays. With AVX2 dot tiles multiply at
// 0.8 to 0.9 of the peak, and only many rows are better. Measured with bench/kernels_bench.
constexpr std::size_t kPanelRows = HWY_TARGET == HWY_AVX2 ? 96 : kLanes == 16 ? 48 : 32;

bool uses_panels(const MatmulShape& shape) {
  return shape.summation == Summation::kFast && shape.rows >= kPanelRows;
}

// Dot tiles need no less than panels: so what holds many rows holds fewer.
std::size_t packed_floats(const MatmulShape& shape) {
  return whole_tiles(shape.rows) * padded_k(shape.k);
}

void pack_rows(const MatmulShape& shape, const float* a, std::size_t row_begin, std::size_t row_end,
               float* packed) {
  const auto pack = uses_panels(shape) ? pack_panel : pack_dot;
  pack(shape, a, row_begin, row_end, packed);
}

void matmul(const MatmulShape& shape, const float* packed, const std::byte* weights,
            const Weights& bias, std::size_t n_begin, std::size_t n_end, float* c,
            std::size_t c_stride, float* scratch) {
  const Operands in = {packed, weights, bias, shape.k};
  const Output out = {c, c_stride};
  with_dtype(shape.dtype, [&](auto w) {
    using W = decltype(w);
    if (uses_panels(shape)) {
      matmul_panel<W>(in, shape.rows, n_begin, n_end, out, scratch);
    } else {
      matmul_dot<W>(in, shape.rows, n_begin, n_end, out);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(packed_floats);
HWY_EXPORT(pack_rows);
HWY_EXPORT(matmul);

std::size_t packed_floats(const MatmulShape& shape) {
  return HWY_DYNAMIC_DISPATCH(packed_floats)(shape);
}

void pack_rows(const MatmulShape& shape, std::span<const float> a, std::size_t row_begin,
               std::size_t row_end, std::span<float> packed) {
  WEFT_DCHECK(row_begin <= row_end && row_end <= shape.rows);
  WEFT_DCHECK(a.size() >= shape.rows * shape.k && packed.size() >= packed_floats(shape));
  HWY_DYNAMIC_DISPATCH(pack_rows)(shape, a.data(), row_begin, row_end, packed.data());
}

void matmul(const MatmulShape& shape, std::span<const float> packed, const std::byte* weights,
            const Weights& bias, std::size_t n_begin, std::size_t n_end, float* c,
            std::size_t c_stride, std::span<float> scratch) {
  WEFT_DCHECK(n_begin <= n_end && n_end <= shape.n && packed.size() >= packed_floats(shape));
  WEFT_DCHECK(scratch.size() >= kMatmulScratchFloats);
  HWY_DYNAMIC_DISPATCH(matmul)
  (shape, packed.data(), weights, bias, n_begin, n_end, c, c_stride, scratch.data());
}

}  // namespace weft::kernels
#endif  // HWY_ONCE
