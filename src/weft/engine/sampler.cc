#include "weft/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "weft/kernels/ops.h"

namespace weft {
namespace {

// Below this a temperature means greedy, as in vLLM: its inverse would overflow the exponents.
constexpr double kLeastTemperature = 1e-5;
constexpr float kNever = -std::numeric_limits<float>::infinity();

Error bad_logits() {
  return Error(ErrorCode::kInternal, "the model's logits hold NaN or infinity");
}

bool is_adjusted(const SamplingContext& context) {
  const SamplingParams& params = context.params;
  return !params.logit_bias.empty() || !params.allowed_token_ids.empty() ||
         params.presence_penalty != 0 || params.frequency_penalty != 0 ||
         params.repetition_penalty != 1 || context.generated() < params.min_tokens;
}

// The first index at which the sum of the weights before and at it passes `target`. An index of
// weight 0 is never taken. Partial sums of blocks first: the chain of additions is what costs.
std::size_t index_at(std::span<const float> weights, double target) {
  constexpr std::size_t kBlock = 256;
  std::size_t begin = 0;
  std::size_t last_positive = 0;
  while (begin < weights.size()) {
    const auto block = weights.subspan(begin, std::min(kBlock, weights.size() - begin));
    double sums[4] = {0, 0, 0, 0};
    for (std::size_t i = 0; i < block.size(); ++i) sums[i % 4] += static_cast<double>(block[i]);
    const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (sum > 0) last_positive = begin;
    if (sum > target) break;
    target -= sum;
    begin += block.size();
  }
  // Past the end, or past a block's, by rounding only: then the last one that has a weight.
  begin = std::min(begin, last_positive);
  std::size_t chosen = begin;
  for (std::size_t i = begin; i < std::min(begin + kBlock, weights.size()); ++i) {
    if (weights[i] <= 0) continue;
    chosen = i;
    target -= static_cast<double>(weights[i]);
    if (target < 0) break;
  }
  return chosen;
}

}  // namespace

double uniform_of(std::uint64_t seed, std::uint64_t k) {
  const auto mix = [](std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15u;
  // The seed is mixed first, so that seeds 0, 1, 2, ... give streams that do not overlap in
  // practice.
  const std::uint64_t bits = mix(mix(seed + kGamma) + (k + 1) * kGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampler::Sampler(std::size_t vocab_size)
    : adjusted_(vocab_size), weights_(vocab_size), counts_(vocab_size, 0) {
  order_.reserve(vocab_size);
}

Result<ScoredToken> Sampler::sample(std::span<const float> logits, const SamplingContext& context) {
  const double log_sum = kernels::log_sum_exp(logits);
  if (!std::isfinite(log_sum)) return bad_logits();
  const std::span<const float> adjusted = is_adjusted(context) ? adjust(logits, context) : logits;
  const SamplingParams& params = context.params;
  const std::size_t greedy = kernels::argmax(adjusted);
  if (!std::isfinite(adjusted[greedy])) {
    return Error(ErrorCode::kInvalidArgument,
                 "allowed_token_ids, min_tokens and logit_bias leave no token to choose");
  }
  auto token = static_cast<std::uint32_t>(greedy);
  if (params.temperature >= kLeastTemperature) {
    const bool filtered = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
    token = filtered ? draw_filtered(adjusted, context) : draw_any(adjusted, context);
  }
  if (!params.logprobs) return ScoredToken{{token, 0, 0}, {}};
  return scored(logits, log_sum, token, *params.logprobs);
}

Result<ScoredToken> Sampler::score(std::span<const float> logits, std::uint32_t token,
                                   std::uint32_t top) {
  const double log_sum = kernels::log_sum_exp(logits);
  if (!std::isfinite(log_sum)) return bad_logits();
  return scored(logits, log_sum, token, top);
}

ScoredToken Sampler::scored(std::span<const float> logits, double log_sum, std::uint32_t token,
                            std::uint32_t top) const {
  const auto entry = [&](std::uint32_t id, std::size_t rank) {
    return TokenLogprob{id, static_cast<float>(static_cast<double>(logits[id]) - log_sum),
                        static_cast<std::uint32_t>(rank)};
  };
  ScoredToken result{entry(token, kernels::count_at_least(logits, logits[token])), {}};
  if (top > 0) {
    std::vector<std::uint32_t> ids(std::min<std::size_t>(top, logits.size()));
    kernels::top_k(logits, ids);
    for (const std::uint32_t id : ids) result.top.push_back(entry(id, result.top.size() + 1));
  }
  return result;
}

std::span<const float> Sampler::adjust(std::span<const float> logits,
                                       const SamplingContext& context) {
  const SamplingParams& params = context.params;
  if (params.allowed_token_ids.empty()) {
    std::ranges::copy(logits, adjusted_.begin());
  } else {
    std::ranges::fill(adjusted_, kNever);
    for (const std::uint32_t id : params.allowed_token_ids) adjusted_[id] = logits[id];
  }
  if (context.generated() < params.min_tokens) {
    for (const std::uint32_t id : params.stop_token_ids) adjusted_[id] = kNever;
    for (const std::uint32_t id : context.end_ids) adjusted_[id] = kNever;
  }
  for (const auto& [id, bias] : params.logit_bias) adjusted_[id] += bias;
  penalize(context);
  return adjusted_;
}

// Repetition counts prompt and output, the other two the output alone. Source: vLLM's
// apply_penalties, and the OpenAI API's reference for frequency and presence.
void Sampler::penalize(const SamplingContext& context) {
  const SamplingParams& params = context.params;
  const auto repetition = static_cast<float>(params.repetition_penalty);
  // A count's top bit says that the repetition penalty was applied.
  constexpr std::uint32_t kRepeated = 1u << 31;
  if (repetition != 1) {
    for (const std::uint32_t id : context.tokens) {
      if (counts_[id] != 0) continue;
      counts_[id] = kRepeated;
      float& logit = adjusted_[id];
      logit = logit > 0 ? logit / repetition : logit * repetition;
    }
  }
  const auto output = context.tokens.subspan(context.prompt_tokens);
  for (const std::uint32_t id : output) ++counts_[id];
  for (const std::uint32_t id : output) {
    const std::uint32_t count = counts_[id] & ~kRepeated;
    if (count == 0) continue;  // this id was seen to before
    adjusted_[id] -= static_cast<float>(params.frequency_penalty * count + params.presence_penalty);
    counts_[id] = 0;
  }
  for (const std::uint32_t id : context.tokens) counts_[id] = 0;
}

std::uint32_t Sampler::draw_any(std::span<const float> logits, const SamplingContext& context) {
  const auto inverse_temperature = static_cast<float>(1.0 / context.params.temperature);
  const double sum = kernels::exp_weights(logits, inverse_temperature, weights_);
  const double target = uniform_of(context.seed, context.generated()) * sum;
  return static_cast<std::uint32_t>(index_at(weights_, target));
}

std::uint32_t Sampler::draw_filtered(std::span<const float> logits,
                                     const SamplingContext& context) {
  const SamplingParams& params = context.params;
  const auto inverse_temperature = static_cast<float>(1.0 / params.temperature);
  kernels::exp_weights(logits, inverse_temperature, weights_);

  // The largest weight is 1, so min_p is a bound on the weights as they are.
  order_.clear();
  const auto least = static_cast<float>(params.min_p);
  for (std::uint32_t id = 0; id < weights_.size(); ++id) {
    if (weights_[id] > 0 && weights_[id] >= least) order_.push_back(id);
  }
  const auto likelier = [&](std::uint32_t a, std::uint32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  };
  if (params.top_k > 0 && static_cast<std::uint64_t>(params.top_k) < order_.size()) {
    std::nth_element(order_.begin(), order_.begin() + params.top_k, order_.end(), likelier);
    order_.resize(static_cast<std::size_t>(params.top_k));
  }
  const auto sum_of_order = [&] {
    return std::accumulate(order_.begin(), order_.end(), 0.0, [&](double sum, std::uint32_t id) {
      return sum + static_cast<double>(weights_[id]);
    });
  };
  double sum = sum_of_order();
  if (params.top_p < 1) {
    // The smallest set of the likeliest that holds top_p of the mass. Sorted a stretch at a time:
    // it is mostly a few of very many.
    const double enough = params.top_p * sum;
    std::size_t kept = 0;
    double mass = 0;
    for (std::size_t sorted = 0; kept < order_.size() && (kept == 0 || mass < enough);) {
      if (kept == sorted) {
        const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(sorted);
        sorted = std::min(order_.size(), std::max<std::size_t>(256, sorted * 8));
        std::partial_sort(begin, order_.begin() + static_cast<std::ptrdiff_t>(sorted), order_.end(),
                          likelier);
      }
      mass += static_cast<double>(weights_[order_[kept++]]);
    }
    order_.resize(kept);
    sum = mass;
  }

  double target = uniform_of(context.seed, context.generated()) * sum;
  for (const std::uint32_t id : order_) {
    target -= static_cast<double>(weights_[id]);
    if (target < 0) return id;
  }
  return order_.back();
}

}  // namespace weft
