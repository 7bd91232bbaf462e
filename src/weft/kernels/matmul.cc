#include "weft/kernels/matmul.h"

#include <algorithm>
#include <bit>

#include "weft/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernels/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "hwy/cache_control.h"
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

// Tiles are as large as the registers allow: sums, a row of vectors of W, one of A, and a mask for
// bf16.
constexpr std::size_t kTileRows = kRegisters == 32 ? 8 : 4;
constexpr std::size_t kTileColumns = kRegisters == 32 ? 3 : 2;
constexpr std::size_t kFourRowColumns = kRegisters == 32 ? 4 : 2;
constexpr std::size_t kPanelVectors = 3;
constexpr std::size_t kPanelColumns = kPanelVectors * kLanes;
constexpr std::size_t kPanelDepth =
    256;  // of k: with it a panel stays in L2, and A's part of it in L1
constexpr std::size_t kBlockRows = 192;        // of A for one panel: 192 x 256 floats stay in L2
constexpr std::size_t kDotDepth = 2 * kLanes;  // of k, in one step of a dot tile

constexpr std::size_t kDotBlockBytes = 64 * 1024;  // of W
constexpr std::size_t kLineBytes = 64;             // of the cache, to fetch ahead

static_assert(kBlockRows % kTileRows == 0);
static_assert(kColumnStep % kPanelColumns == 0);
static_assert(kPanelDepth * kPanelColumns <= kMatmulScratchFloats);

// From this many rows on kFast uses panels: where unpacking W pays. Measured with
// bench/kernels_bench.
constexpr std::size_t kPanelRows = kLanes == 16 ? 16 : 32;

bool uses_panels(const MatmulShape& shape) {
  return shape.summation == Summation::kFast && shape.rows >= kPanelRows;
}

// ------------------------------------------------------------------ dot tiles

// Two vectors of W for one step of k. bf16: the even and the odd elements, which cost a shift and a
// mask and no permutation; A is packed to match. Others: the first and the second kLanes elements.
template <class W>
struct StepOf {
  static HWY_INLINE V first(const std::byte* p) { return W::load(p); }
  static HWY_INLINE V second(const std::byte* p) { return W::load(p + kLanes * W::kSize); }
};
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
    return hn::BitCast(DF(), hn::And(pairs(p), hn::Set(DU32(), 0xFFFF0000u)));
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

// Adds the products of R rows and N columns of W. Without the barrier GCC reads x from memory for
// each of its uses, and loads become the limit.
template <std::size_t R, std::size_t N>
HWY_INLINE void add_products(const float* a, const V (&columns)[N], V (&sums)[R * N]) {
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

// A block of columns goes through all tiles of rows before the next one, which is fetched
// meanwhile, each tile its share: memory is busy all the time.
template <class W>
void matmul_dot(const Operands& in, std::size_t rows, std::size_t n_begin, std::size_t n_end,
                Output out) {
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
      const float* a = in.packed + row * padded_k(in.k);
      dot_row_tile<W>(in, a, std::min(kTileRows, rows - row), n, last,
                      next + row / kTileRows * block * column_bytes / tiles, tiles,
                      {out.c + row * out.stride, out.stride});
    }
  }
}

// --------------------------------------------------------------------- panels

// Tile after tile, each [k][kTileRows], zeros where there is no row.
void pack_panel(const MatmulShape& shape, const float* a, std::size_t row_begin,
                std::size_t row_end, float* packed) {
  const std::size_t tiled = (row_end + kTileRows - 1) / kTileRows * kTileRows;
  const std::size_t end = row_end == shape.rows ? tiled : row_end;
  for (std::size_t row = row_begin; row < end; ++row) {
    float* out = packed + row / kTileRows * kTileRows * shape.k + row % kTileRows;
    for (std::size_t k = 0; k < shape.k; ++k) {
      out[k * kTileRows] = row < shape.rows ? a[row * shape.k + k] : 0.0f;
    }
  }
}

// columns[i] lane r = rows[r] lane i, of 32-bit lanes.
template <class D, class VD = hn::Vec<D>>
HWY_INLINE void transpose(D d, const VD (&rows)[kLanes], VD (&columns)[kLanes]) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  columns[0] = rows[0];
#else
  const hn::Repartition<std::uint64_t, D> d64;
  constexpr std::size_t kBlocks = kLanes / 4;
  // quads[c][g], block b: rows 4g to 4g + 3 of column 4b + c.
  VD quads[4][kBlocks];
  for (std::size_t g = 0; g < kBlocks; ++g) {
    const auto* r = rows + 4 * g;
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r[0], r[1]));
    const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r[0], r[1]));
    const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r[2], r[3]));
    const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r[2], r[3]));
    quads[0][g] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    quads[1][g] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    quads[2][g] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
    quads[3][g] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
  }
  for (std::size_t c = 0; c < 4; ++c) {
    const auto& q = quads[c];
    if constexpr (kBlocks == 1) {
      columns[c] = q[0];
    } else if constexpr (kBlocks == 2) {
      columns[c] = hn::ConcatLowerLower(d, q[1], q[0]);
      columns[4 + c] = hn::ConcatUpperUpper(d, q[1], q[0]);
    } else {
      const VD even01 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(q[1]), q[0]);
      const VD odd01 = hn::OddEvenBlocks(q[1], hn::SwapAdjacentBlocks(q[0]));
      const VD even23 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(q[3]), q[2]);
      const VD odd23 = hn::OddEvenBlocks(q[3], hn::SwapAdjacentBlocks(q[2]));
      columns[c] = hn::ConcatLowerLower(d, even23, even01);
      columns[4 + c] = hn::ConcatLowerLower(d, odd23, odd01);
      columns[8 + c] = hn::ConcatUpperUpper(d, even23, even01);
      columns[12 + c] = hn::ConcatUpperUpper(d, odd23, odd01);
    }
  }
#endif
}

// A square of W: kLanes columns of C by as many elements of k as a step takes, to
// panel[k][kPanelColumns].
template <class W>
struct SquareOf {
  static constexpr std::size_t kDepth = kLanes;
  static HWY_INLINE void unpack(const std::byte* w, std::size_t w_stride, float* panel) {
    V rows[kLanes], columns[kLanes];
    for (std::size_t j = 0; j < kLanes; ++j) rows[j] = W::load(w + j * w_stride);
    transpose(DF(), rows, columns);
    for (std::size_t i = 0; i < kLanes; ++i) {
      hn::StoreU(columns[i], DF(), panel + i * kPanelColumns);
    }
  }
};
// bf16: pairs are transposed as 32-bit words, which halves the shuffles.
template <>
struct SquareOf<Bf16> {
  static constexpr std::size_t kDepth = 2 * kLanes;
  static HWY_INLINE void unpack(const std::byte* w, std::size_t w_stride, float* panel) {
    const DU32 du;
    hn::Vec<DU32> rows[kLanes], columns[kLanes];
    for (std::size_t j = 0; j < kLanes; ++j) rows[j] = StepOf<Bf16>::pairs(w + j * w_stride);
    transpose(du, rows, columns);
    const auto odd = hn::Set(du, 0xFFFF0000u);
    for (std::size_t i = 0; i < kLanes; ++i) {
      float* out = panel + 2 * i * kPanelColumns;
      hn::StoreU(hn::BitCast(DF(), hn::ShiftLeft<16>(columns[i])), DF(), out);
      hn::StoreU(hn::BitCast(DF(), hn::And(columns[i], odd)), DF(), out + kPanelColumns);
    }
  }
};

// W's columns [n, n + columns) of C and elements [k, k + depth) to panel[depth rounded
// up][kPanelColumns].
template <class W>
HWY_NOINLINE void unpack_panel(const std::byte* weights, std::size_t w_stride, std::size_t columns,
                               std::size_t depth, float* panel) {
  using Square = SquareOf<W>;
  for (std::size_t j = 0; j < columns; j += kLanes) {
    const std::size_t wide = std::min(kLanes, columns - j);
    for (std::size_t k = 0; k < depth; k += Square::kDepth) {
      const std::size_t deep = std::min(Square::kDepth, depth - k);
      const std::byte* w = weights + j * w_stride + k * W::kSize;
      float* out = panel + k * kPanelColumns + j;
      if (wide == kLanes && deep == Square::kDepth) {
        Square::unpack(w, w_stride, out);
        continue;
      }
      HWY_ALIGN std::byte edge[kLanes * Square::kDepth * W::kSize] = {};
      for (std::size_t i = 0; i < wide; ++i) {
        std::memcpy(edge + i * Square::kDepth * W::kSize, w + i * w_stride, deep * W::kSize);
      }
      Square::unpack(edge, Square::kDepth * W::kSize, out);
    }
  }
}

// The weights that the next panel is made of: kPanelColumns stretches of kPanelDepth. Of their
// cache lines [begin, end) a tile fetches one with each step of k.
struct NextPanel {
  const std::byte* at = nullptr;
  std::size_t w_stride = 0;
  std::size_t log_lines = 0;  // of a stretch
  std::size_t begin = 0, end = 0;

  HWY_INLINE void fetch(std::size_t k) const {
    const std::size_t line = begin + k;
    const std::size_t in_stretch = line & ((std::size_t{1} << log_lines) - 1);
    if (line < end) hwy::Prefetch(at + (line >> log_lines) * w_stride + in_stretch * kLineBytes);
  }
};

// C += A x panel for kTileRows rows and kPanelColumns columns.
template <bool kPrefetch>
HWY_NOINLINE void panel_tile(const float* a, const float* panel, std::size_t depth, bool first,
                             const NextPanel& next, Output out) {
  V sums[kTileRows * kPanelVectors];
  for (std::size_t r = 0; r < kTileRows; ++r) {
    for (std::size_t j = 0; j < kPanelVectors; ++j) {
      const float* c = out.c + r * out.stride + j * kLanes;
      sums[r * kPanelVectors + j] = first ? hn::Zero(DF()) : hn::LoadU(DF(), c);
    }
  }
  for (std::size_t k = 0; k < depth; ++k) {
    if constexpr (kPrefetch) next.fetch(k);
    V columns[kPanelVectors];
    for (std::size_t j = 0; j < kPanelVectors; ++j) {
      columns[j] = hn::LoadU(DF(), panel + k * kPanelColumns + j * kLanes);
    }
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const V x = hn::Set(DF(), a[k * kTileRows + r]);
      for (std::size_t j = 0; j < kPanelVectors; ++j)
        sums[r * kPanelVectors + j] = hn::MulAdd(x, columns[j], sums[r * kPanelVectors + j]);
    }
  }
  for (std::size_t r = 0; r < kTileRows; ++r) {
    for (std::size_t j = 0; j < kPanelVectors; ++j) {
      hn::StoreU(sums[r * kPanelVectors + j], DF(), out.c + r * out.stride + j * kLanes);
    }
  }
}

// The same where C has fewer rows or columns than a tile: through a tile of its own.
void panel_edge(const float* a, const float* panel, std::size_t depth, bool first, std::size_t rows,
                std::size_t columns, Output out) {
  HWY_ALIGN float tile[kTileRows * kPanelColumns] = {};
  for (std::size_t r = 0; r < rows && !first; ++r) {
    std::copy_n(out.c + r * out.stride, columns, tile + r * kPanelColumns);
  }
  panel_tile<false>(a, panel, depth, first, {}, {tile, kPanelColumns});
  for (std::size_t r = 0; r < rows; ++r) {
    std::copy_n(tile + r * kPanelColumns, columns, out.c + r * out.stride);
  }
}

void add_bias(const Weights& bias, std::size_t n, std::size_t columns, std::size_t rows,
              Output out) {
  if (bias.data == nullptr) return;
  float values[kPanelColumns];
  load_bias(bias, n, columns, values);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t j = 0; j < columns; ++j) out.c[r * out.stride + j] += values[j];
  }
}

template <class W>
void matmul_panel(const Operands& in, std::size_t rows, std::size_t n_begin, std::size_t n_end,
                  Output out, float* panel) {
  const std::size_t w_stride = in.k * W::kSize;
  for (std::size_t block = 0; block < rows; block += kBlockRows) {
    const std::size_t block_end = std::min(rows, block + kBlockRows);
    for (std::size_t n = n_begin; n < n_end; n += kPanelColumns) {
      const std::size_t columns = std::min(kPanelColumns, n_end - n);
      for (std::size_t k = 0; k < in.k || k == 0; k += kPanelDepth) {
        const std::size_t depth = std::min(kPanelDepth, in.k - k);
        unpack_panel<W>(in.weights + n * w_stride + k * W::kSize, w_stride, columns, depth, panel);
        constexpr std::size_t kLines = kPanelDepth * W::kSize / kLineBytes;
        const bool last = k + kPanelDepth >= in.k;
        NextPanel next = {last ? in.weights + (n + kPanelColumns) * w_stride
                               : in.weights + n * w_stride + (k + kPanelDepth) * W::kSize,
                          w_stride, std::bit_width(kLines) - 1, 0, kPanelColumns * kLines};
        for (std::size_t row = block; row < block_end; row += kTileRows) {
          const float* a = in.packed + row * in.k + k * kTileRows;
          const std::size_t count = std::min(kTileRows, rows - row);
          const Output at = {out.c + row * out.stride + n, out.stride};
          if (count == kTileRows && columns == kPanelColumns) {
            if (next.begin < next.end) {
              panel_tile<true>(a, panel, depth, k == 0, next, at);
              next.begin += depth;
            } else {
              panel_tile<false>(a, panel, depth, k == 0, next, at);
            }
          } else {
            panel_edge(a, panel, depth, k == 0, count, columns, at);
          }
        }
      }
      add_bias(in.bias, n, columns, block_end - block,
               {out.c + block * out.stride + n, out.stride});
    }
  }
}

// ----------------------------------------------------------------- the choice

std::size_t packed_floats(const MatmulShape& shape) {
  const std::size_t rows = (shape.rows + kTileRows - 1) / kTileRows * kTileRows;
  return rows * (uses_panels(shape) ? shape.k : padded_k(shape.k));
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
