#pragma once
// The small steps of a forward pass and of sampling, in fp32. Pure functions on spans, any length
// and alignment, no allocation. Each result depends only on the arguments (one row), bit for bit,
// on one kind of CPU.

#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/kernels/weights.h"

namespace weft::kernels {

// out = weight * (x / sqrt(mean(x^2) + eps)), multiplied in that order, as transformers'
// LlamaRMSNorm does. One row: x, weight and out have the same length; out may be x.
void rms_norm(std::span<const float> x, const Weights& weight, float eps, std::span<float> out);

// Rotary embedding of one position, in place, as transformers' rotate_half does it: for each head
// of `heads` [count, head_dim] and i below head_dim / 2,
//   x[i]                = x[i] * cos[i] - x[i + head_dim / 2] * sin[i]
//   x[i + head_dim / 2] = x[i + head_dim / 2] * cos[i] + x[i] * sin[i]
// cos and sin have head_dim / 2 elements and give head_dim.
void rope(std::span<float> heads, std::span<const float> cos, std::span<const float> sin);

// out = gate / (1 + exp(-gate)) * up. out may be gate or up. Error of the first factor: 4 ulp from
// gate -87 up. Below that exp(-gate) leaves fp32, and the factor, of which no more than 1.5e-36 is
// left, may be 0.
void silu_mul(std::span<const float> gate, std::span<const float> up, std::span<float> out);

// x += y.
void add(std::span<float> x, std::span<const float> y);

// log(sum(exp(x))). exp is in fp32 (2 ulp), the sum in fp32 for at most 1,024 elements, then in
// fp64. -inf where all are -inf or there are none; NaN where one is NaN; +inf where one is +inf and
// none is NaN.
double log_sum_exp(std::span<const float> x);

// weights[i] = exp((x[i] - max(x)) * inverse_temperature), 0 for -inf; returns their sum, summed as
// above. weights may be x. Requires: no NaN, one finite element, inverse_temperature > 0.
double exp_weights(std::span<const float> x, float inverse_temperature, std::span<float> weights);

// The first index of the largest element. NaN is never largest; 0 where all are NaN or there are
// none.
std::size_t argmax(std::span<const float> x);

// How many elements are `value` or more: vLLM's rank of a token with that logit (1: the likeliest).
std::size_t count_at_least(std::span<const float> x, float value);

// The indices of the indices.size() largest elements, largest first, of equals the first. NaN
// counts as -inf. Requires indices.size() <= x.size(). Made for few: every new entry costs a step
// through `indices`.
void top_k(std::span<const float> x, std::span<std::uint32_t> indices);

}  // namespace weft::kernels
