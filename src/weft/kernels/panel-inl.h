// Matmul over panels of W unpacked to fp32: for many rows. Included once for each target.

// Per-target include guard
#if defined(WEFT_KERNELS_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_PANEL_INL_H_
#undef WEFT_KERNELS_PANEL_INL_H_
#else
#define WEFT_KERNELS_PANEL_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "hwy/cache_control.h"
#include "weft/kernels/dot-inl.h"
#include "weft/kernels/matmul.h"
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

constexpr std::size_t kPanelVectors = 3;
constexpr std::size_t kPanelColumns = kPanelVectors * kLanes;
constexpr std::size_t kPanelDepth =
    256;  // of k: with it a panel stays in L2, and A's part of it in L1
constexpr std::size_t kBlockRows = 256;  // of A for one panel: 256 KB of it stay in L2

static_assert(kBlockRows % kTileRows == 0);
static_assert(kColumnStep % kPanelColumns == 0);
static_assert(kPanelDepth * kPanelColumns <= kMatmulScratchFloats);

HWY_INLINE std::size_t whole_tiles(std::size_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Rows of `a`, so many elements of each, as [depth][kTileRows].
HWY_INLINE void pack_tile(const float* a, std::size_t stride, std::size_t depth, float* out) {
  std::size_t i = 0;
  if constexpr (kTileRows == 4 && HWY_TARGET != HWY_SCALAR) {
    const DF d;
    for (; i + kLanes <= depth; i += kLanes) {
      hn::StoreInterleaved4(hn::LoadU(d, a + i), hn::LoadU(d, a + stride + i),
                            hn::LoadU(d, a + 2 * stride + i), hn::LoadU(d, a + 3 * stride + i), d,
                            out + i * kTileRows);
    }
  }
  for (; i < depth; ++i) {
    for (std::size_t r = 0; r < kTileRows; ++r) out[i * kTileRows + r] = a[r * stride + i];
  }
}

// For every kPanelDepth of k, tile after tile, each [k][kTileRows], zeros where there is no row:
// what a panel meets lies together, or a power of two apart it would share few sets of the cache.
void pack_panel(const MatmulShape& shape, const float* a, std::size_t row_begin,
                std::size_t row_end, float* packed) {
  const std::size_t tiled = whole_tiles(shape.rows);
  const std::size_t end = row_end == shape.rows ? tiled : row_end;
  for (std::size_t k = 0; k < shape.k; k += kPanelDepth) {
    const std::size_t depth = std::min(kPanelDepth, shape.k - k);
    for (std::size_t row = row_begin; row < end;) {
      float* out = packed + k * tiled + row / kTileRows * kTileRows * depth + row % kTileRows;
      const float* in = a + row * shape.k + k;
      if (row % kTileRows == 0 && row + kTileRows <= std::min(end, shape.rows)) {
        pack_tile(in, shape.k, depth, out);
        row += kTileRows;
        continue;
      }
      for (std::size_t i = 0; i < depth; ++i) out[i * kTileRows] = row < shape.rows ? in[i] : 0.0f;
      ++row;
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

// sums += the elements of kTileRows rows at one k, times the panel's columns there.
HWY_INLINE void add_outer_products(const float* a, const V (&columns)[kPanelVectors],
                                   V (&sums)[kTileRows * kPanelVectors]) {
#if HWY_TARGET == HWY_AVX2
  static_assert(kTileRows == 4 && kPanelVectors == 3);
  WEFT_ADD_FOUR_ROWS("vbroadcastss", 4, a, columns, sums);
#else
  for (std::size_t r = 0; r < kTileRows; ++r) {
    const V x = hn::Set(DF(), a[r]);
    for (std::size_t j = 0; j < kPanelVectors; ++j)
      sums[r * kPanelVectors + j] = hn::MulAdd(x, columns[j], sums[r * kPanelVectors + j]);
  }
#endif
}

// C += A x panel for kTileRows rows and kPanelColumns columns.
template <bool kPrefetch>
HWY_NOINLINE void panel_tile(const float* a, const float* panel, std::size_t depth, bool first,
                             const NextPanel& next, Output out) {
  V sums[kTileRows * kPanelVectors];
  WEFT_UNROLL
  for (std::size_t r = 0; r < kTileRows; ++r) {
    WEFT_UNROLL
    for (std::size_t j = 0; j < kPanelVectors; ++j) {
      const float* c = out.c + r * out.stride + j * kLanes;
      sums[r * kPanelVectors + j] = first ? hn::Zero(DF()) : hn::LoadU(DF(), c);
    }
  }
  for (std::size_t k = 0; k < depth; ++k) {
    if constexpr (kPrefetch) next.fetch(k);
    V columns[kPanelVectors];
    WEFT_UNROLL
    for (std::size_t j = 0; j < kPanelVectors; ++j) {
      columns[j] = hn::LoadU(DF(), panel + k * kPanelColumns + j * kLanes);
    }
    add_outer_products(a + k * kTileRows, columns, sums);
  }
  WEFT_UNROLL
  for (std::size_t r = 0; r < kTileRows; ++r) {
    WEFT_UNROLL
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
        // With many tiles each fetches a few lines before it begins, and memory is busy all the
        // time.
        const std::size_t tiles = whole_tiles(block_end - block) / kTileRows;
        const std::size_t share = (next.end + tiles - 1) / tiles;
        const bool spread = share <= 8;
        for (std::size_t row = block; row < block_end; row += kTileRows) {
          const float* a = in.packed + k * whole_tiles(rows) + row * depth;
          const std::size_t count = std::min(kTileRows, rows - row);
          const Output at = {out.c + row * out.stride + n, out.stride};
          if (spread) {
            for (std::size_t i = 0; i < share; ++i) next.fetch(i);
            next.begin += share;
          }
          if (count == kTileRows && columns == kPanelColumns) {
            if (!spread && next.begin < next.end) {
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

}  // namespace HWY_NAMESPACE
}  // namespace weft::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
