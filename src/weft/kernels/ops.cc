#include "weft/kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernels/ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "weft/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels {
namespace HWY_NAMESPACE {

// out[i] = f(in[i]...), whole vectors and then a padded one, so that a place in the row changes no
// result.
template <class F, class... In>
HWY_INLINE void map(std::size_t n, float* out, F&& f, const In*... in) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(DF(), in + i)...), DF(), out + i);
  if (i < n) store_tail(f(load_tail(in + i, n - i)...), out + i, n - i);
}

float sum_of_squares(const float* x, std::size_t n) {
  V sums[4] = {hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF()), hn::Zero(DF())};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t s = 0; s < 4; ++s) {
      const V v = hn::LoadU(DF(), x + i + s * kLanes);
      sums[s] = hn::MulAdd(v, v, sums[s]);
    }
  }
  for (; i < n; i += kLanes) {
    const V v = load_tail(x + i, std::min(kLanes, n - i));
    sums[0] = hn::MulAdd(v, v, sums[0]);
  }
  return sum_lanes(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

void rms_norm(const float* x, std::size_t n, const Weights& weight, float eps, float* out) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const V scale = hn::Set(DF(), 1.0f / std::sqrt(mean + eps));
  with_dtype(weight.dtype, [&](auto w) HWY_ATTR {
    using W = decltype(w);
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const V scaled = hn::Mul(hn::LoadU(DF(), x + i), scale);
      hn::StoreU(hn::Mul(W::load(weight.data + i * W::kSize), scaled), DF(), out + i);
    }
    if (i < n) {
      const V scaled = hn::Mul(load_tail(x + i, n - i), scale);
      store_tail(hn::Mul(load_tail<W>(weight.data + i * W::kSize, n - i), scaled), out + i, n - i);
    }
  });
}

void rope(float* heads, std::size_t count, std::size_t half, const float* cos, const float* sin) {
  for (float* head = heads; head != heads + count * 2 * half; head += 2 * half) {
    for (std::size_t i = 0; i < half; i += kLanes) {
      const std::size_t n = std::min(kLanes, half - i);
      const bool whole = n == kLanes;
      const auto load = [&](const float* p)
                            HWY_ATTR { return whole ? hn::LoadU(DF(), p) : load_tail(p, n); };
      const V x = load(head + i);
      const V y = load(head + half + i);
      const V c = load(cos + i);
      const V s = load(sin + i);
      const V rotated_x = hn::Sub(hn::Mul(x, c), hn::Mul(y, s));
      const V rotated_y = hn::Add(hn::Mul(y, c), hn::Mul(x, s));
      if (whole) {
        hn::StoreU(rotated_x, DF(), head + i);
        hn::StoreU(rotated_y, DF(), head + half + i);
      } else {
        store_tail(rotated_x, head + i, n);
        store_tail(rotated_y, head + half + i, n);
      }
    }
  }
}

void silu_mul(const float* gate, const float* up, std::size_t n, float* out) {
  const V one = hn::Set(DF(), 1.0f);
  const auto f = [one](V g, V u) HWY_ATTR {
    return hn::Mul(hn::Div(g, hn::Add(one, exp_lanes(hn::Neg(g)))), u);
  };
  map(n, out, f, gate, up);
}

void add(float* x, const float* y, std::size_t n) {
  map(
      n, x, [](V a, V b) HWY_ATTR { return hn::Add(a, b); }, x, y);
}

// The largest element, or NaN if there is one, or -inf if there are none.
float max_or_nan(const float* x, std::size_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  V largest = hn::Set(DF(), -kInfinity);
  V unordered = hn::Zero(DF());  // not 0 where NaN was seen
  std::size_t i = 0;
  const auto visit = [&](V v) HWY_ATTR {
    largest = hn::Max(largest, v);
    unordered = hn::Or(unordered, hn::IfThenElseZero(hn::IsNaN(v), hn::Set(DF(), 1.0f)));
  };
  for (; i + kLanes <= n; i += kLanes) visit(hn::LoadU(DF(), x + i));
  float result = max_lanes(largest);
  bool nan = max_lanes(unordered) > 0.0f;
  for (; i < n; ++i) {
    result = std::max(result, x[i]);
    nan = nan || std::isnan(x[i]);
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : result;
}

// The sum of exp((x[i] - shift) * scale), each element also given to `store` where that is not
// null.
double sum_of_exp(const float* x, std::size_t n, float shift, float scale, float* store) {
  constexpr std::size_t kChunk = 1024;
  const V shifts = hn::Set(DF(), shift);
  const V scales = hn::Set(DF(), scale);
  double total = 0.0;
  for (std::size_t begin = 0; begin < n; begin += kChunk) {
    const std::size_t end = std::min(n, begin + kChunk);
    V sum = hn::Zero(DF());
    for (std::size_t i = begin; i < end; i += kLanes) {
      const std::size_t count = std::min(kLanes, end - i);
      const bool whole = count == kLanes;
      const V in = whole ? hn::LoadU(DF(), x + i) : load_tail(x + i, count);
      V y = exp_lanes(hn::Mul(hn::Sub(in, shifts), scales));
      if (!whole) y = hn::IfThenElseZero(hn::FirstN(DF(), count), y);
      sum = hn::Add(sum, y);
      if (store != nullptr && whole) hn::StoreU(y, DF(), store + i);
      if (store != nullptr && !whole) store_tail(y, store + i, count);
    }
    total += static_cast<double>(sum_lanes(sum));
  }
  return total;
}

std::size_t count_at_least(const float* x, std::size_t n, float value) {
  const V values = hn::Set(DF(), value);
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    count += hn::CountTrue(DF(), hn::Ge(hn::LoadU(DF(), x + i), values));
  }
  for (; i < n; ++i) count += x[i] >= value ? 1 : 0;
  return count;
}

// The first index in [begin, n) whose element is larger than `value`, or n.
std::size_t find_larger(const float* x, std::size_t begin, std::size_t n, float value) {
  const V values = hn::Set(DF(), value);
  std::size_t i = begin;
  for (; i + kLanes <= n; i += kLanes) {
    const std::intptr_t lane = hn::FindFirstTrue(DF(), hn::Gt(hn::LoadU(DF(), x + i), values));
    if (lane >= 0) return i + static_cast<std::size_t>(lane);
  }
  while (i < n && !(x[i] > value)) ++i;
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(rms_norm);
HWY_EXPORT(rope);
HWY_EXPORT(silu_mul);
HWY_EXPORT(add);
HWY_EXPORT(max_or_nan);
HWY_EXPORT(sum_of_exp);
HWY_EXPORT(count_at_least);
HWY_EXPORT(find_larger);

void rms_norm(std::span<const float> x, const Weights& weight, float eps, std::span<float> out) {
  WEFT_DCHECK(x.size() == out.size());
  HWY_DYNAMIC_DISPATCH(rms_norm)(x.data(), x.size(), weight, eps, out.data());
}

void rope(std::span<float> heads, std::span<const float> cos, std::span<const float> sin) {
  WEFT_DCHECK(cos.size() == sin.size() && heads.size() % (2 * cos.size()) == 0);
  const std::size_t half = cos.size();
  HWY_DYNAMIC_DISPATCH(rope)(heads.data(), heads.size() / (2 * half), half, cos.data(), sin.data());
}

void silu_mul(std::span<const float> gate, std::span<const float> up, std::span<float> out) {
  WEFT_DCHECK(gate.size() == up.size() && gate.size() == out.size());
  HWY_DYNAMIC_DISPATCH(silu_mul)(gate.data(), up.data(), gate.size(), out.data());
}

void add(std::span<float> x, std::span<const float> y) {
  WEFT_DCHECK(x.size() == y.size());
  HWY_DYNAMIC_DISPATCH(add)(x.data(), y.data(), x.size());
}

double log_sum_exp(std::span<const float> x) {
  const float largest = HWY_DYNAMIC_DISPATCH(max_or_nan)(x.data(), x.size());
  if (!std::isfinite(largest)) return largest;
  const double sum = HWY_DYNAMIC_DISPATCH(sum_of_exp)(x.data(), x.size(), largest, 1.0f, nullptr);
  return std::log(sum) + static_cast<double>(largest);
}

double exp_weights(std::span<const float> x, float inverse_temperature, std::span<float> weights) {
  WEFT_DCHECK(x.size() == weights.size());
  const float largest = HWY_DYNAMIC_DISPATCH(max_or_nan)(x.data(), x.size());
  return HWY_DYNAMIC_DISPATCH(sum_of_exp)(x.data(), x.size(), largest, inverse_temperature,
                                          weights.data());
}

std::size_t argmax(std::span<const float> x) {
  const auto find_larger = HWY_DYNAMIC_DISPATCH(find_larger);
  std::size_t best = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = find_larger(x.data(), 0, x.size(), largest); i < x.size();
       i = find_larger(x.data(), i + 1, x.size(), largest)) {
    best = i;
    largest = x[i];
  }
  if (x.empty() || largest > -std::numeric_limits<float>::infinity()) return best;
  const auto first = std::ranges::find(x, largest);  // all are -inf or NaN
  return first == x.end() ? 0 : static_cast<std::size_t>(first - x.begin());
}

std::size_t count_at_least(std::span<const float> x, float value) {
  return HWY_DYNAMIC_DISPATCH(count_at_least)(x.data(), x.size(), value);
}

void top_k(std::span<const float> x, std::span<std::uint32_t> indices) {
  WEFT_DCHECK(indices.size() <= x.size());
  const std::size_t k = indices.size();
  if (k == 0) return;
  const auto value = [x](std::uint32_t i) {
    return std::isnan(x[i]) ? -std::numeric_limits<float>::infinity() : x[i];
  };
  const auto insert = [&](std::size_t index, std::size_t held) {
    const auto i = static_cast<std::uint32_t>(index);
    std::size_t place = held;
    for (; place > 0 && value(indices[place - 1]) < value(i); --place) {
      if (place < k) indices[place] = indices[place - 1];
    }
    indices[place] = i;
  };
  for (std::size_t i = 0; i < k; ++i) insert(i, i);
  const auto find_larger = HWY_DYNAMIC_DISPATCH(find_larger);
  for (std::size_t i = find_larger(x.data(), k, x.size(), value(indices[k - 1])); i < x.size();
       i = find_larger(x.data(), i + 1, x.size(), value(indices[k - 1]))) {
    insert(i, k);
  }
}

}  // namespace weft::kernels
#endif  // HWY_ONCE
