// Matmul as dot products along k: for few rows, and in the exact mode for any number. Included once
// for each target.

// Per-target include guard
#if defined(WEFT_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_DOT_INL_H_
#undef WEFT_KERNELS_DOT_INL_H_
#else
#define WEFT_KERNELS_DOT_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "hwy/cache_control.h"
#include "weft/kernels/matmul.h"
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

// Tiles are as large as the registers allow: sums, a row of vectors of W and one of A. With AVX2
// that is all 16 of them (add_products_in_place); SSE4 multiplies into one of its own.
constexpr std::size_t kTileRows = kRegisters == 32 ? 8 : 4;
constexpr std::size_t kTileColumns = kRegisters == 32 || HWY_TARGET == HWY_AVX2 ? 3 : 2;
constexpr std::size_t kFourRowColumns = kRegisters == 32 ? 4 : kTileColumns;
constexpr std::size_t kDotDepth = 2 * kLanes;  // of k, in one step of a dot tile

constexpr std::size_t kDotBlockBytes = 64 * 1024;  // of W
constexpr std::size_t kDotRowBytes = 256 * 1024;   // of A
constexpr std::size_t kLineBytes = 64;             // of the cache, to fetch ahead

// Two vectors of W for one step of k. bf16: the even and the odd elements, which cost a shift and a
// mask and no permutation; A is packed to match. Others: the first and the second kLanes elements.
template <class W>
struct StepOf {
  static HWY_INLINE V first(const std::byte* p) { return W::load(p); }
  static HWY_INLINE V second(const std::byte* p) { return W::load(p + kLanes * W::kSize); }
};
// Not a constant, which GCC would make anew for each use where it has no register to keep it in.
HWY_ALIGN std::uint32_t odd_mask[16] = {0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                        0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                        0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                        0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u};
template <>
struct StepOf<Bf16> {
  static HWY_INLINE auto pairs(const std::byte* p) {
#if HWY_TARGET == HWY_SCALAR
    std::uint32_t pair;
    std::memcpy(&pair, p, sizeof(pair));
    return hn::Set(DU32(), pair);
#else
    return hn::LoadU(DU32(), reinterpret_cast<const std::uint32_t*>(p));
#endif
  }
  static HWY_INLINE V first(const std::byte* p) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(pairs(p)));
  }
  static HWY_INLINE V second(const std::byte* p) {
    return hn::BitCast(DF(), hn::And(pairs(p), hn::LoadU(DU32(), odd_mask)));
  }
};

// A's place in a packed step: element i of 2 kLanes goes to slot.
HWY_INLINE std::size_t slot_in_step(DType dtype, std::size_t i) {
  return dtype == DType::kBF16 ? (i % 2) * kLanes + i / 2 : i;
}

std::size_t padded_k(std::size_t k) {
  return (k + kDotDepth - 1) / kDotDepth * kDotDepth;
}

// The rows of the tile that starts at `row`, of which `rows` are left: a power of two, at most
// kTileRows.
HWY_INLINE std::size_t tile_rows(std::size_t rows) {
  return std::min(kTileRows, std::bit_ceil(rows));
}

// One step of a row, `count` elements of it and then zeros, to 2 kLanes.
HWY_INLINE void pack_step(DType dtype, const float* a, std::size_t count, float* out) {
  const DF d;
  if (count == kDotDepth) {
    V first, second;
    if (dtype == DType::kBF16) {
      hn::LoadInterleaved2(d, a, first, second);
    } else {
      first = hn::LoadU(d, a);
      second = hn::LoadU(d, a + kLanes);
    }
    hn::StoreU(first, d, out);
    hn::StoreU(second, d, out + kLanes);
    return;
  }
  std::fill_n(out, kDotDepth, 0.0f);
  for (std::size_t i = 0; i < count; ++i) out[slot_in_step(dtype, i)] = a[i];
}

// Tile after tile, each [steps of k][tile rows][2 kLanes], zeros where there is no row or element.
void pack_dot(const MatmulShape& shape, const float* a, std::size_t row_begin, std::size_t row_end,
              float* packed) {
  const std::size_t depth = padded_k(shape.k);
  for (std::size_t row = row_begin; row < row_end; ++row) {
    const std::size_t tile = row / kTileRows * kTileRows;
    const std::size_t rows = tile_rows(shape.rows - tile);
    float* out = packed + tile * depth + (row - tile) * kDotDepth;
    for (std::size_t k = 0; k < shape.k; k += kDotDepth) {
      pack_step(shape.dtype, a + row * shape.k + k, std::min(kDotDepth, shape.k - k), out);
      out += rows * kDotDepth;
    }
    if (row + 1 < shape.rows) continue;
    for (std::size_t missing = shape.rows; missing < tile + rows; ++missing) {
      for (std::size_t k = 0; k < depth; k += kDotDepth) {
        std::fill_n(packed + tile * depth + k * rows + (missing - tile) * kDotDepth, kDotDepth,
                    0.0f);
      }
    }
  }
}

// The sums of v0 to v3 across their lanes, each as the same tree, to out[0, 4).
HWY_INLINE void sum_four(V v0, V v1, V v2, V v3, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(v0);
  out[1] = hn::GetLane(v1);
  out[2] = hn::GetLane(v2);
  out[3] = hn::GetLane(v3);
#else
  const DF d;
  const hn::Repartition<std::uint64_t, DF> d64;
  const V s01 = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const V s23 = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto p01 = hn::BitCast(d64, s01);
  const auto p23 = hn::BitCast(d64, s23);
  // In each 128-bit block: the block's sums of v0, v1, v2, v3.
  const V blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, p01, p23)),
                           hn::BitCast(d, hn::InterleaveUpper(d64, p01, p23)));
  const hn::Half<DF> half;
  if constexpr (kLanes == 4) {
    hn::StoreU(blocks, d, out);
  } else if constexpr (kLanes == 8) {
    hn::StoreU(hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks)), half, out);
  } else {
    const hn::Half<hn::Half<DF>> quarter;
    const auto halves = hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
    hn::StoreU(hn::Add(hn::LowerHalf(quarter, halves), hn::UpperHalf(quarter, halves)), quarter,
               out);
  }
#endif
}

// C of rows x columns as it lies.
struct Output {
  float* c;
  std::size_t stride;
};

#if HWY_TARGET == HWY_AVX2
// sums[3 r + j] += x_r * columns[j] for four rows and three columns, x_r as `load` reads it from
// `a` + r * `stride` bytes. They need all 16 registers, and GCC 12 does not find how: it spills
// sums, and a sum that goes through memory waits for it at every step (64 GFLOP/s and not 95).
// clang-format off
#undef WEFT_ADD_ROW
#define WEFT_ADD_ROW(load, stride, r, s0, s1, s2)      \
  load " " #r "*" #stride "(%[a]), %[x]\n\t"           \
  "vfmadd231ps %[w0], %[x], %[" #s0 "]\n\t"            \
  "vfmadd231ps %[w1], %[x], %[" #s1 "]\n\t"            \
  "vfmadd231ps %[w2], %[x], %[" #s2 "]\n\t"
#undef WEFT_ADD_FOUR_ROWS
#define WEFT_ADD_FOUR_ROWS(load, stride, at, columns, sums)                                         \
  V x;                                                                                              \
  __asm__ volatile(                                                                                 \
      WEFT_ADD_ROW(load, stride, 0, s0, s1, s2) WEFT_ADD_ROW(load, stride, 1, s3, s4, s5)           \
          WEFT_ADD_ROW(load, stride, 2, s6, s7, s8) WEFT_ADD_ROW(load, stride, 3, s9, s10, s11)     \
      : [x] "=&x"(x.raw), [s0] "+x"(sums[0].raw), [s1] "+x"(sums[1].raw), [s2] "+x"(sums[2].raw),   \
        [s3] "+x"(sums[3].raw), [s4] "+x"(sums[4].raw), [s5] "+x"(sums[5].raw),                     \
        [s6] "+x"(sums[6].raw), [s7] "+x"(sums[7].raw), [s8] "+x"(sums[8].raw),                     \
        [s9] "+x"(sums[9].raw), [s10] "+x"(sums[10].raw), [s11] "+x"(sums[11].raw)                  \
      : [a] "r"(at), [w0] "x"(columns[0].raw), [w1] "x"(columns[1].raw), [w2] "x"(columns[2].raw)   \
      : "memory")
// clang-format on

HWY_INLINE void add_products_in_place(const float* a, const V (&columns)[3], V (&sums)[12]) {
  static_assert(kDotDepth * sizeof(float) == 64);
  WEFT_ADD_FOUR_ROWS("vmovups", 64, a, columns, sums);
}
#endif

// Adds the products of R rows and N columns of W. Without the barrier GCC reads x from memory for
// each of its uses, and loads become the limit.
template <std::size_t R, std::size_t N>
HWY_INLINE void add_products(const float* a, const V (&columns)[N], V (&sums)[R * N]) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (R == 4 && N == 3) return add_products_in_place(a, columns, sums);
#endif
  WEFT_UNROLL
  for (std::size_t r = 0; r < R; ++r) {
    const V x = hn::LoadU(DF(), a + r * kDotDepth);
    __asm__ volatile("" ::: "memory");
    WEFT_UNROLL
    for (std::size_t j = 0; j < N; ++j)
      sums[r * N + j] = hn::MulAdd(x, columns[j], sums[r * N + j]);
  }
}

// One step of k for R rows and N columns.
template <class W, std::size_t R, std::size_t N>
HWY_INLINE void dot_step(const float* a, const std::byte* w, std::size_t w_stride,
                         V (&sums)[R * N]) {
  V columns[N];
  WEFT_UNROLL
  for (std::size_t j = 0; j < N; ++j) columns[j] = StepOf<W>::first(w + j * w_stride);
  add_products<R>(a, columns, sums);
  WEFT_UNROLL
  for (std::size_t j = 0; j < N; ++j) columns[j] = StepOf<W>::second(w + j * w_stride);
  add_products<R>(a + kLanes, columns, sums);
}

// Weights that will be wanted soon, to be fetched a few lines with each step of k.
struct Ahead {
  const std::byte* at;
  std::size_t step_bytes;
};

// R x N dot products over all of k; `rows` of the R are stored.
template <class W, std::size_t R, std::size_t N>
HWY_INLINE void dot_tile(const float* a, const std::byte* w, std::size_t k, std::size_t rows,
                         const float* bias, Ahead& ahead, Output out) {
  constexpr std::size_t kStepLines = (N * kDotDepth * W::kSize + kLineBytes - 1) / kLineBytes;
  V sums[R * N];
  WEFT_UNROLL
  for (std::size_t i = 0; i < R * N; ++i) sums[i] = hn::Zero(DF());
  const std::size_t w_stride = k * W::kSize;
  const std::size_t whole = k / kDotDepth * kDotDepth;
  for (std::size_t i = 0; i < whole; i += kDotDepth) {
    for (std::size_t j = 0; j < kStepLines; ++j) hwy::Prefetch(ahead.at + j * kLineBytes);
    ahead.at += ahead.step_bytes;
    dot_step<W, R, N>(a + i * R, w + i * W::kSize, w_stride, sums);
  }
  if (whole < k) {
    HWY_ALIGN std::byte tail[N * kDotDepth * W::kSize] = {};
    for (std::size_t j = 0; j < N; ++j) {
      std::memcpy(tail + j * kDotDepth * W::kSize, w + j * w_stride + whole * W::kSize,
                  (k - whole) * W::kSize);
    }
    dot_step<W, R, N>(a + whole * R, tail, kDotDepth * W::kSize, sums);
  }
  HWY_ALIGN float totals[(R * N + 3) / 4 * 4];
  constexpr std::size_t kLast = R * N - 1;
  WEFT_UNROLL
  for (std::size_t i = 0; i < R * N; i += 4) {
    sum_four(sums[i], sums[std::min(i + 1, kLast)], sums[std::min(i + 2, kLast)],
             sums[std::min(i + 3, kLast)], totals + i);
  }
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t j = 0; j < N; ++j) out.c[r * out.stride + j] = totals[r * N + j] + bias[j];
  }
}

// What a range of columns is computed from.
struct Operands {
  const float* packed;
  const std::byte* weights;
  Weights bias;  // data may be null
  std::size_t k;
};

template <std::size_t N>
HWY_INLINE void load_bias(const Weights& bias, std::size_t n, std::size_t count, float (&out)[N]) {
  std::fill(out, out + N, 0.0f);
  if (bias.data == nullptr) return;
  with_dtype(bias.dtype, [&](auto w) HWY_ATTR {
    using B = decltype(w);
    for (std::size_t j = 0; j < count; ++j) {
      out[j] = hn::GetLane(load_tail<B>(bias.data + (n + j) * B::kSize, 1));
    }
  });
}

// Columns [n_begin, n_end) of one tile of rows, with each step of k that step_bytes further on of
// what lies `ahead`.
template <class W, std::size_t R, std::size_t N>
HWY_NOINLINE void dot_columns(const Operands& in, const float* a, std::size_t rows,
                              std::size_t n_begin, std::size_t n_end, const std::byte* ahead_at,
                              std::size_t tiles, Output out) {
  float bias[N];
  Ahead ahead = {ahead_at, N * kDotDepth * W::kSize / tiles};
  std::size_t n = n_begin;
  for (; n + N <= n_end; n += N) {
    load_bias(in.bias, n, N, bias);
    dot_tile<W, R, N>(a, in.weights + n * in.k * W::kSize, in.k, rows, bias, ahead,
                      {out.c + n, out.stride});
  }
  for (; n < n_end; ++n) {
    load_bias(in.bias, n, 1, bias);
    dot_tile<W, R, 1>(a, in.weights + n * in.k * W::kSize, in.k, rows, bias, ahead,
                      {out.c + n, out.stride});
  }
}

template <class W>
void dot_row_tile(const Operands& in, const float* a, std::size_t rows, std::size_t n_begin,
                  std::size_t n_end, const std::byte* ahead, std::size_t tiles, Output out) {
  switch (tile_rows(rows)) {
    case 1:
      return dot_columns<W, 1, 4>(in, a, rows, n_begin, n_end, ahead, tiles, out);
    case 2:
      return dot_columns<W, 2, 4>(in, a, rows, n_begin, n_end, ahead, tiles, out);
    case 4:
      return dot_columns<W, 4, kFourRowColumns>(in, a, rows, n_begin, n_end, ahead, tiles, out);
    default:
      return dot_columns<W, kTileRows, kTileColumns>(in, a, rows, n_begin, n_end, ahead, tiles,
                                                     out);
  }
}

// A block of columns goes through all tiles of a block of rows before the next one, which is
// fetched meanwhile, each tile its share: memory is busy all the time.
template <class W>
void dot_row_block(const Operands& in, const float* a, std::size_t rows, std::size_t n_begin,
                   std::size_t n_end, Output out) {
  const std::size_t column_bytes = in.k * W::kSize;
  const std::size_t tiles = (rows + kTileRows - 1) / kTileRows;
  // Small enough for L2 with what is fetched; a single tile wants no more than the next columns.
  const std::size_t block_bytes = tiles > 1 ? kDotBlockBytes : 12 * 1024;
  const std::size_t fit = block_bytes / std::max<std::size_t>(1, column_bytes);
  const std::size_t block = std::max<std::size_t>(12, fit / 12 * 12);
  for (std::size_t n = n_begin; n < n_end; n += block) {
    const std::size_t last = std::min(n_end, n + block);
    const std::byte* next = in.weights + last * column_bytes;
    for (std::size_t row = 0; row < rows; row += kTileRows) {
      dot_row_tile<W>(in, a + row * padded_k(in.k), std::min(kTileRows, rows - row), n, last,
                      next + row / kTileRows * block * column_bytes / tiles, tiles,
                      {out.c + row * out.stride, out.stride});
    }
  }
}

// As many rows at a time as stay in L2.
template <class W>
void matmul_dot(const Operands& in, std::size_t rows, std::size_t n_begin, std::size_t n_end,
                Output out) {
  const std::size_t depth = padded_k(in.k);
  const std::size_t fit = kDotRowBytes / sizeof(float) / std::max<std::size_t>(1, depth);
  const std::size_t block = std::max<std::size_t>(1, fit / kTileRows) * kTileRows;
  for (std::size_t row = 0; row < rows; row += block) {
    dot_row_block<W>(in, in.packed + row * depth, std::min(block, rows - row), n_begin, n_end,
                     {out.c + row * out.stride, out.stride});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
