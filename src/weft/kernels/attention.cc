#include "weft/kernels/attention.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "weft/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernels/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "hwy/cache_control.h"
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

constexpr std::size_t kStep = 16;  // positions at a time
constexpr std::size_t kStepVectors = kStep / kLanes;
// A row is one head of one token. So many at a time that a key costs less to load than to multiply,
// and that there are more sums than multiplications on their way: half of the registers, with AVX2
// three quarters.
constexpr std::size_t kTileRows =
    HWY_TARGET == HWY_AVX2
        ? 6
        : std::clamp<std::size_t>(kRegisters / 2 / kStepVectors, 1, kRegisters / 4);
// Keys and values of so many positions stay in L2 for all tiles of a block.
constexpr std::size_t kStretch = 64;
constexpr std::size_t kLineFloats = 16;  // of the cache

// Where the keys [head_dim][page_tokens] and values [kStep][head_dim] of kStep positions begin.
struct Place {
  const float* keys;
  const float* values;
};

// scores[r] = q[r] . key for kStep positions. Each is summed in the order of the components.
// `queries` are [head_dim][kStride]. The `next` keys are fetched meanwhile: they are in another
// page, and memory would wait.
template <std::size_t R, std::size_t kStride>
HWY_INLINE void dot_keys(const float* queries, const float* keys, const float* next,
                         std::size_t stride, std::size_t head_dim, V (&scores)[R * kStepVectors]) {
  WEFT_UNROLL
  for (std::size_t i = 0; i < R * kStepVectors; ++i) scores[i] = hn::Zero(DF());
  for (std::size_t i = 0; i < head_dim; ++i) {
    hwy::Prefetch(next + i * stride);
    V key[kStepVectors];
    WEFT_UNROLL
    for (std::size_t v = 0; v < kStepVectors; ++v) key[v] = hn::LoadU(DF(), keys + v * kLanes);
    WEFT_UNROLL
    for (std::size_t r = 0; r < R; ++r) {
      const V q = hn::Set(DF(), queries[r]);
      WEFT_UNROLL
      for (std::size_t v = 0; v < kStepVectors; ++v) {
        V& score = scores[r * kStepVectors + v];
        score = hn::MulAdd(q, key[v], score);
      }
    }
    keys += stride;
    queries += kStride;
  }
}

// What online softmax carries: the largest score so far and the sum of exp(score - largest).
struct Softmax {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

// Scales positions [first, last) of `scores` into out[0, kStep), -inf elsewhere. Returns the
// largest so far: what is taken off before exp().
HWY_INLINE float scale_scores(const V* scores, float scale, std::size_t first, std::size_t last,
                              float largest_before, float* out) {
  const DF d;
  const V minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V low = hn::Set(d, static_cast<float>(first));
  const V high = hn::Set(d, static_cast<float>(last));
  V largest = hn::Set(d, largest_before);
  for (std::size_t v = 0; v < kStepVectors; ++v) {
    const V index = hn::Iota(d, static_cast<float>(v * kLanes));
    const auto inside = hn::And(hn::Ge(index, low), hn::Lt(index, high));
    const V scaled = hn::IfThenElse(inside, hn::Mul(scores[v], hn::Set(d, scale)), minus_infinity);
    hn::StoreU(scaled, d, out + v * kLanes);
    largest = hn::Max(largest, scaled);
  }
  return max_lanes(largest);
}

// values[i] = exp(values[i] - shift) for kStep of them. Returns their sum.
HWY_INLINE float exp_step(float shift, float* values) {
  const DF d;
  V sum = hn::Zero(d);
  for (std::size_t v = 0; v < kStepVectors; ++v) {
    const V weight = exp_lanes(hn::Sub(hn::LoadU(d, values + v * kLanes), hn::Set(d, shift)));
    hn::StoreU(weight, d, values + v * kLanes);
    sum = hn::Add(sum, weight);
  }
  return sum_lanes(sum);
}

// A row's way through all positions.
struct Row {
  float* query = nullptr;  // and where the result goes
  std::size_t begin = 0, end = 0;
  Softmax softmax;
  float sums[kMaxHeadDim];
};

// rows[r].sums = sums * factors[r] + the values of positions [first, last), weighted.
// The `next` values are fetched meanwhile.
template <std::size_t R>
HWY_INLINE void add_values(const float (*weights)[kStep], const float* values, const float* next,
                           std::size_t head_dim, std::size_t first, std::size_t last,
                           const float* factors, Row* rows) {
  const DF d;
  constexpr std::size_t kVectors = R == 6 ? 2 : std::clamp<std::size_t>(kRegisters / 2 / R, 1, 4);
  std::size_t i = 0;
  for (; i + kVectors * kLanes <= head_dim; i += kVectors * kLanes) {
    V sums[R * kVectors];
    WEFT_UNROLL
    for (std::size_t s = 0; s < R * kVectors; ++s) {
      const V before = hn::LoadU(d, rows[s / kVectors].sums + i + s % kVectors * kLanes);
      sums[s] = hn::Mul(before, hn::Set(d, factors[s / kVectors]));
    }
    for (std::size_t p = first; p < last; ++p) {
      V value[kVectors];
      WEFT_UNROLL
      for (std::size_t v = 0; v < kVectors; ++v) {
        if (v * kLanes % kLineFloats == 0) {
          hwy::Prefetch(next + p * head_dim + i + v * kLanes);
        }
        value[v] = hn::LoadU(d, values + p * head_dim + i + v * kLanes);
      }
      WEFT_UNROLL
      for (std::size_t r = 0; r < R; ++r) {
        const V weight = hn::Set(d, weights[r][p]);
        WEFT_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[r * kVectors + v] = hn::MulAdd(weight, value[v], sums[r * kVectors + v]);
        }
      }
    }
    WEFT_UNROLL
    for (std::size_t s = 0; s < R * kVectors; ++s) {
      hn::StoreU(sums[s], d, rows[s / kVectors].sums + i + s % kVectors * kLanes);
    }
  }
  for (; i < head_dim; i += kLanes) {
    const std::size_t count = std::min(kLanes, head_dim - i);
    for (std::size_t r = 0; r < R; ++r) {
      V sum = hn::Mul(load_tail(rows[r].sums + i, count), hn::Set(d, factors[r]));
      for (std::size_t p = first; p < last; ++p) {
        sum =
            hn::MulAdd(hn::Set(d, weights[r][p]), load_tail(values + p * head_dim + i, count), sum);
      }
      store_tail(sum, rows[r].sums + i, count);
    }
  }
}

// Turns the scores of positions [first[r], last[r]) into weights[r], 0 elsewhere. factors[r] is
// what earlier sums are multiplied by. All rows' factors take one exp().
template <std::size_t R>
HWY_INLINE void weigh(const V* scores, float scale, const std::size_t* first,
                      const std::size_t* last, Row* rows, float (*weights)[kStep], float* factors) {
  constexpr std::size_t kPadded = (R + kLanes - 1) / kLanes * kLanes;
  HWY_ALIGN float shifts[kPadded] = {};
  HWY_ALIGN float exps[kPadded] = {};
  for (std::size_t r = 0; r < R; ++r) {
    if (first[r] >= last[r]) continue;
    Softmax& state = rows[r].softmax;
    const float now = scale_scores(scores + r * kStepVectors, scale, first[r], last[r],
                                   state.largest, weights[r]);
    // No score is above -inf yet: any finite shift keeps exp() at 0 and not NaN.
    shifts[r] = now == -std::numeric_limits<float>::infinity() ? 0.0f : now;
    exps[r] = state.largest - shifts[r];
    state.largest = now;
  }
  for (std::size_t r = 0; r < R; r += kLanes) {
    hn::Store(exp_lanes(hn::Load(DF(), exps + r)), DF(), exps + r);
  }
  for (std::size_t r = 0; r < R; ++r) {
    if (first[r] >= last[r]) continue;
    factors[r] = exps[r];
    rows[r].softmax.sum = rows[r].softmax.sum * exps[r] + exp_step(shifts[r], weights[r]);
  }
}

// Positions [at, at + kStep) for R rows, each as far as it sees them.
template <std::size_t R>
HWY_INLINE void attend_step(const KvLayout& layout, const Place& place, const Place& next,
                            std::size_t at, float scale, const float* queries, Row* rows) {
  V scores[R * kStepVectors];
  dot_keys<R, R>(queries, place.keys, next.keys, layout.page_tokens, layout.head_dim, scores);
  HWY_ALIGN float weights[R][kStep];
  float factors[R];
  std::size_t first[R], last[R];
  bool alike = true;
  for (std::size_t r = 0; r < R; ++r) {
    first[r] = std::max(rows[r].begin, at) - at;
    last[r] = std::min(std::max(rows[r].end, at), at + kStep) - at;
    alike = alike && first[r] == first[0] && last[r] == last[0];
  }
  weigh<R>(scores, scale, first, last, rows, weights, factors);
  if (alike) {
    if (first[0] < last[0]) {
      add_values<R>(weights, place.values, next.values, layout.head_dim, first[0], last[0], factors,
                    rows);
    }
    return;
  }
  for (std::size_t r = 0; r < R; ++r) {
    if (first[r] >= last[r]) continue;
    add_values<1>(weights + r, place.values, next.values, layout.head_dim, first[r], last[r],
                  factors + r, rows + r);
  }
}

struct Positions {
  const KvLayer& layer;
  const std::uint32_t* pages;
  std::size_t kv_head;

  Place place(std::size_t at) const {
    const KvLayout& layout = layer.layout;
    const float* keys = layer.pages + pages[at / layout.page_tokens] * layout.page_floats() +
                        2 * kv_head * layout.block_floats();
    const std::size_t slot = at % layout.page_tokens;
    return {keys + slot, keys + layout.block_floats() + slot * layout.head_dim};
  }
};

// Positions [begin, end); those up to `all_end` come after them.
template <std::size_t R>
HWY_NOINLINE void attend_tile(const Positions& in, std::size_t begin, std::size_t end,
                              std::size_t all_end, float scale, const float* queries, Row* rows) {
  Place place = in.place(begin);
  for (std::size_t at = begin; at < end; at += kStep) {
    const Place next = at + kStep < all_end ? in.place(at + kStep) : place;
    attend_step<R>(in.layer.layout, place, next, at, scale, queries, rows);
    place = next;
  }
}

// The rows of the next tile where so many are left: 8 are two of 4, not 6 and 2.
HWY_INLINE std::size_t tile_rows(std::size_t left) {
  if (kTileRows == 6)
    return left >= 6 && left != 8 ? 6 : std::min<std::size_t>(4, std::bit_floor(left));
  return std::min(kTileRows, std::bit_floor(left));
}

// Calls f(r, integral_constant R) for tiles of R rows from row r on, until all `count` are done.
template <typename F>
HWY_INLINE void for_each_tile(std::size_t count, F&& f) {
  for (std::size_t r = 0; r < count;) {
    const std::size_t rows = tile_rows(count - r);
    if (rows == 1) f(r, std::integral_constant<std::size_t, 1>());
    if constexpr (kTileRows >= 2) {
      if (rows == 2) f(r, std::integral_constant<std::size_t, 2>());
    }
    if constexpr (kTileRows >= 4) {
      if (rows == 4) f(r, std::integral_constant<std::size_t, 4>());
    }
    if constexpr (kTileRows == 6) {
      if (rows == 6) f(r, std::integral_constant<std::size_t, 6>());
    }
    if constexpr (kTileRows >= 8) {
      if (rows == 8) f(r, std::integral_constant<std::size_t, 8>());
    }
    r += rows;
  }
}

// At most kQueryBlockHeads rows.
void attend_rows(const Positions& in, float scale, Row* rows, std::size_t count) {
  const std::size_t head_dim = in.layer.layout.head_dim;
  // Tile after tile, each [head_dim][rows].
  HWY_ALIGN float queries[kQueryBlockHeads * kMaxHeadDim];
  std::size_t begin = rows[0].begin, end = rows[0].end;
  for_each_tile(count, [&](std::size_t row, auto tile) HWY_ATTR {
    constexpr std::size_t kR = decltype(tile)::value;
    for (std::size_t r = 0; r < kR; ++r) {
      begin = std::min(begin, rows[row + r].begin);
      end = std::max(end, rows[row + r].end);
      std::fill_n(rows[row + r].sums, head_dim, 0.0f);
      for (std::size_t i = 0; i < head_dim; ++i) {
        queries[row * head_dim + i * kR + r] = rows[row + r].query[i];
      }
    }
  });
  for (std::size_t at = begin / kStep * kStep; at < end; at += kStretch) {
    for_each_tile(count, [&](std::size_t row, auto tile) HWY_ATTR {
      attend_tile<decltype(tile)::value>(in, at, std::min(end, at + kStretch), end, scale,
                                         queries + row * head_dim, rows + row);
    });
  }
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t i = 0; i < head_dim; ++i) {
      rows[r].query[i] = rows[r].sums[i] / rows[r].softmax.sum;
    }
  }
}

void attend(const KvLayer& layer, const std::uint32_t* pages, std::size_t kv_head, float scale,
            const QueryBlock& block) {
  const std::size_t head_dim = layer.layout.head_dim;
  Row rows[kQueryBlockHeads];
  const std::size_t total = block.tokens * block.group;
  for (std::size_t first = 0; first < total; first += kQueryBlockHeads) {
    const std::size_t count = std::min(kQueryBlockHeads, total - first);
    for (std::size_t r = 0; r < count; ++r) {
      const std::size_t token = (first + r) / block.group;
      const std::size_t head = (first + r) % block.group;
      const std::size_t end = block.position + token + 1;
      rows[r].query = block.queries + token * block.stride + head * head_dim;
      rows[r].end = end;
      rows[r].begin = block.window != 0 && block.window < end ? end - block.window : 0;
      rows[r].softmax = {};
    }
    attend_rows({layer, pages, kv_head}, scale, rows, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(attend);

void store_kv(const KvLayer& layer, std::uint32_t page, std::size_t slot,
              std::span<const float> keys, std::span<const float> values) {
  const KvLayout& layout = layer.layout;
  WEFT_DCHECK(keys.size() == layout.kv_heads * layout.head_dim && keys.size() == values.size());
  float* block = layer.pages + page * layout.page_floats();
  for (std::size_t head = 0; head < layout.kv_heads; ++head) {
    const std::size_t begin = head * layout.head_dim;
    for (std::size_t i = 0; i < layout.head_dim; ++i) {
      block[i * layout.page_tokens + slot] = keys[begin + i];
    }
    block += layout.block_floats();
    std::ranges::copy(values.subspan(begin, layout.head_dim), block + slot * layout.head_dim);
    block += layout.block_floats();
  }
}

void attention(const KvLayer& layer, std::span<const std::uint32_t> pages, std::size_t kv_head,
               float scale, const QueryBlock& block) {
  WEFT_DCHECK(block.position + block.tokens <= pages.size() * layer.layout.page_tokens);
  WEFT_DCHECK(layer.layout.head_dim <= kMaxHeadDim);
  HWY_DYNAMIC_DISPATCH(attend)(layer, pages.data(), kv_head, scale, block);
}

}  // namespace weft::kernels
#endif  // HWY_ONCE
