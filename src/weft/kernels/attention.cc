#include "weft/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "weft/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernels/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

constexpr std::size_t kStep = 16;  // positions at a time
constexpr std::size_t kStepVectors = kStep / kLanes;
constexpr std::size_t kHeads = 8;  // query heads at a time: few models have larger groups

// scores[i] = q . key(i) for kStep positions, even and odd components summed apart: two chains to
// hide the latency.
HWY_INLINE void dot_keys(const float* q, const float* keys, std::size_t stride,
                         std::size_t head_dim, V (&scores)[kStepVectors]) {
  V even[kStepVectors], odd[kStepVectors];
  for (std::size_t v = 0; v < kStepVectors; ++v) even[v] = odd[v] = hn::Zero(DF());
  std::size_t i = 0;
  for (; i + 2 <= head_dim; i += 2) {
    const V q0 = hn::Set(DF(), q[i]);
    const V q1 = hn::Set(DF(), q[i + 1]);
    for (std::size_t v = 0; v < kStepVectors; ++v) {
      even[v] = hn::MulAdd(q0, hn::LoadU(DF(), keys + i * stride + v * kLanes), even[v]);
      odd[v] = hn::MulAdd(q1, hn::LoadU(DF(), keys + (i + 1) * stride + v * kLanes), odd[v]);
    }
  }
  if (i < head_dim) {
    const V q0 = hn::Set(DF(), q[i]);
    for (std::size_t v = 0; v < kStepVectors; ++v) {
      even[v] = hn::MulAdd(q0, hn::LoadU(DF(), keys + i * stride + v * kLanes), even[v]);
    }
  }
  for (std::size_t v = 0; v < kStepVectors; ++v) scores[v] = hn::Add(even[v], odd[v]);
}

// What online softmax carries: the largest score so far and the sum of exp(score - largest).
struct Softmax {
  float largest = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

// Turns positions [first, last) of `scores` into weights[0, kStep), 0 elsewhere. Returns what
// earlier sums are multiplied by.
HWY_INLINE float weigh(const V (&scores)[kStepVectors], float scale, std::size_t first,
                       std::size_t last, Softmax& state, float* weights) {
  const DF d;
  const V minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V low = hn::Set(d, static_cast<float>(first));
  const V high = hn::Set(d, static_cast<float>(last));
  V scaled[kStepVectors];
  V largest = hn::Set(d, state.largest);
  for (std::size_t v = 0; v < kStepVectors; ++v) {
    const V index = hn::Iota(d, static_cast<float>(v * kLanes));
    const auto inside = hn::And(hn::Ge(index, low), hn::Lt(index, high));
    scaled[v] = hn::IfThenElse(inside, hn::Mul(scores[v], hn::Set(d, scale)), minus_infinity);
    largest = hn::Max(largest, scaled[v]);
  }
  const float now = max_lanes(largest);
  // No score is above -inf yet: any finite shift keeps exp() at 0 and not NaN.
  const V shift = hn::Set(d, now == -std::numeric_limits<float>::infinity() ? 0.0f : now);
  const float factor = hn::GetLane(exp_lanes(hn::Sub(hn::Set(d, state.largest), shift)));
  V sum = hn::Zero(d);
  for (std::size_t v = 0; v < kStepVectors; ++v) {
    const V weight = exp_lanes(hn::Sub(scaled[v], shift));
    hn::StoreU(weight, d, weights + v * kLanes);
    sum = hn::Add(sum, weight);
  }
  state.largest = now;
  state.sum = state.sum * factor + sum_lanes(sum);
  return factor;
}

// out = out * factor + the weighted sum of values [first, last).
HWY_INLINE void add_values(const float* weights, const float* values, std::size_t head_dim,
                           std::size_t first, std::size_t last, float factor, float* out) {
  const DF d;
  std::size_t i = 0;
  for (; i + 4 * kLanes <= head_dim; i += 4 * kLanes) {
    V sums[4];
    for (std::size_t s = 0; s < 4; ++s) {
      sums[s] = hn::Mul(hn::LoadU(d, out + i + s * kLanes), hn::Set(d, factor));
    }
    for (std::size_t p = first; p < last; ++p) {
      const V weight = hn::Set(d, weights[p]);
      for (std::size_t s = 0; s < 4; ++s) {
        sums[s] = hn::MulAdd(weight, hn::LoadU(d, values + p * head_dim + i + s * kLanes), sums[s]);
      }
    }
    for (std::size_t s = 0; s < 4; ++s) hn::StoreU(sums[s], d, out + i + s * kLanes);
  }
  for (; i < head_dim; i += kLanes) {
    const std::size_t count = std::min(kLanes, head_dim - i);
    V sum = hn::Mul(load_tail(out + i, count), hn::Set(d, factor));
    for (std::size_t p = first; p < last; ++p) {
      sum = hn::MulAdd(hn::Set(d, weights[p]), load_tail(values + p * head_dim + i, count), sum);
    }
    store_tail(sum, out + i, count);
  }
}

// `heads` query heads, at most kHeads. A step's keys and values come from memory once, for the
// first head; the others find them in L1.
void attend_heads(const KvLayer& layer, const std::uint32_t* pages, std::size_t begin,
                  std::size_t end, std::size_t kv_head, const float* queries, std::size_t heads,
                  float scale, float* out) {
  const KvLayout& layout = layer.layout;
  const std::size_t head_dim = layout.head_dim;
  HWY_ALIGN float sums[kHeads * kMaxHeadDim];
  HWY_ALIGN float weights[kStep];
  std::fill_n(sums, heads * head_dim, 0.0f);
  Softmax states[kHeads];
  for (std::size_t at = begin / kStep * kStep; at < end; at += kStep) {
    const float* keys = layer.pages + pages[at / layout.page_tokens] * layout.page_floats() +
                        2 * kv_head * layout.block_floats();
    const float* values = keys + layout.block_floats();
    const std::size_t slot = at % layout.page_tokens;
    const std::size_t first = std::max(begin, at) - at;
    const std::size_t last = std::min(end, at + kStep) - at;
    for (std::size_t h = 0; h < heads; ++h) {
      V scores[kStepVectors];
      dot_keys(queries + h * head_dim, keys + slot, layout.page_tokens, head_dim, scores);
      const float factor = weigh(scores, scale, first, last, states[h], weights);
      add_values(weights, values + slot * head_dim, head_dim, first, last, factor,
                 sums + h * head_dim);
    }
  }
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t i = 0; i < head_dim; ++i) {
      out[h * head_dim + i] = sums[h * head_dim + i] / states[h].sum;
    }
  }
}

void attend(const KvLayer& layer, const std::uint32_t* pages, std::size_t begin, std::size_t end,
            std::size_t kv_head, const float* queries, std::size_t heads, float scale, float* out) {
  for (std::size_t h = 0; h < heads; h += kHeads) {
    const std::size_t offset = h * layer.layout.head_dim;
    attend_heads(layer, pages, begin, end, kv_head, queries + offset, std::min(kHeads, heads - h),
                 scale, out + offset);
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

void attention(const KvLayer& layer, std::span<const std::uint32_t> pages, std::size_t begin,
               std::size_t end, std::size_t kv_head, std::span<const float> queries, float scale,
               std::span<float> out) {
  const std::size_t head_dim = layer.layout.head_dim;
  WEFT_DCHECK(begin < end && end <= pages.size() * layer.layout.page_tokens);
  WEFT_DCHECK(head_dim <= kMaxHeadDim && queries.size() == out.size());
  HWY_DYNAMIC_DISPATCH(attend)
  (layer, pages.data(), begin, end, kv_head, queries.data(), queries.size() / head_dim, scale,
   out.data());
}

}  // namespace weft::kernels
#endif  // HWY_ONCE
