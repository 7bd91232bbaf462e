#pragma once
// C[rows, n] = A[rows, k] x W[n, k]^T (+ bias[n]): A and C in fp32, W row-major as a checkpoint has
// it, in bf16, fp16 or fp32, sums in fp32. Any sizes. Nothing allocates; all functions are pure and
// may run side by side.
//
// One product is: pack_rows() over all rows (by one thread or by several, each with rows of its
// own), then, after all of it, matmul() over all columns (likewise by ranges of n). Products with
// the same rows, k, dtype and summation share what was packed: q, k and v; gate and up.
//
// Which kernel runs follows from `rows` and `summation` alone:
//
//   rows          kFast                                     kExact
//   0 to 47       dot: tiles of 8 x 3 dot products along k  dot
//   48 and more   panel: W unpacked to fp32, 256 of k at    dot
//                 a time, and tiles of 8 x 48 outputs
//
// This is AVX-512. With AVX2 panels start at 96 rows, tiles are of 4 x 3 dot products or 4 x 24
// outputs. With SSE4 and NEON panels start at 32 rows and are 3 vectors wide. Measured:
// bench/kernels_bench.
//
// A dot product is always summed in one order, whatever the tile it falls in: lane l of L takes the
// elements of k that are l, l + L, ... (bf16: the even ones of 2L, then the odd), the lanes are
// added as a tree. A panel sums along k in order, 256 at a time. Hence:
//   kExact  a row's result depends on that row, W and bias alone, bit for bit, on one kind of CPU;
//   kFast   where there are panels, also on which side of 48 (32, 96) `rows` is, on nothing else.
// A NaN or infinity in A stays in its row.

#include <cstddef>
#include <span>

#include "weft/kernels/weights.h"

namespace weft::kernels {

enum class Summation { kFast, kExact };

struct MatmulShape {
  std::size_t rows = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  DType dtype = DType::kBF16;  // of W
  Summation summation = Summation::kFast;
};

// The best ranges of n start at multiples of this; any others are right too.
inline constexpr std::size_t kColumnStep = 48;
// What matmul() needs for itself, for each thread: one panel of 256 x 48.
inline constexpr std::size_t kMatmulScratchFloats = 256 * 48;

// Floats that `packed` must have: `rows` and `k`, rounded up. The same for every n, and enough for
// fewer rows, too.
std::size_t packed_floats(const MatmulShape& shape);

// Packs rows [row_begin, row_end) of `a` [rows, k]. `packed` is the whole product's; align it to 64
// bytes for speed.
void pack_rows(const MatmulShape& shape, std::span<const float> a, std::size_t row_begin,
               std::size_t row_end, std::span<float> packed);

// Columns [n_begin, n_end) of C. `weights` is [n, k] of shape.dtype, `bias` [n] or null. Row r,
// column j goes to c[r * c_stride + j]. `scratch` has kMatmulScratchFloats and is the calling
// thread's own; align it to 64 bytes for speed.
void matmul(const MatmulShape& shape, std::span<const float> packed, const std::byte* weights,
            const Weights& bias, std::size_t n_begin, std::size_t n_end, float* c,
            std::size_t c_stride, std::span<float> scratch);

}  // namespace weft::kernels
