#include "weft/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Samples the next token after a prompt of token 0, with a fresh sampler.
Result<ScoredToken> sample(std::vector<float> logits, const SamplingParams& params,
                           std::uint64_t seed = 1, std::vector<std::uint32_t> output = {},
                           std::vector<std::uint32_t> end_ids = {}) {
  Sampler sampler(logits.size());
  std::vector<std::uint32_t> tokens{0};
  tokens.insert(tokens.end(), output.begin(), output.end());
  return sampler.sample(logits, {params, seed, tokens, 1, end_ids});
}

std::uint32_t sampled(std::vector<float> logits, const SamplingParams& params,
                      std::vector<std::uint32_t> output = {},
                      std::vector<std::uint32_t> end_ids = {}) {
  return sample(std::move(logits), params, 1, std::move(output), std::move(end_ids))->chosen.token;
}

// How often each token is drawn with the seeds 0 to count - 1.
std::map<std::uint32_t, int> draws(const std::vector<float>& logits, const SamplingParams& params,
                                   int count) {
  std::map<std::uint32_t, int> result;
  for (int seed = 0; seed < count; ++seed) {
    ++result[sample(logits, params, static_cast<std::uint64_t>(seed))->chosen.token];
  }
  return result;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(sampled({1, 3, 3, 2}, {.temperature = 0}), 1u);
}

// ---- Against the distribution ----

// What vLLM's documentation says of each parameter, in double precision and without a shortcut.
std::vector<double> distribution(std::vector<double> logits, const SamplingParams& params,
                                 const std::vector<std::uint32_t>& output) {
  for (const auto& [id, bias] : params.logit_bias) logits[id] += static_cast<double>(bias);
  std::map<std::uint32_t, int> said;
  for (const std::uint32_t id : output) ++said[id];
  for (std::uint32_t id = 0; id < logits.size(); ++id) {
    double& logit = logits[id];
    if (id == 0 || said.contains(id)) {  // token 0 is the prompt
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    if (!said.contains(id)) continue;
    logit -= params.frequency_penalty * said[id] + params.presence_penalty;
  }
  for (double& logit : logits) logit = std::exp(logit / params.temperature);
  std::vector<std::uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t id) { return logits[id]; });
  double all = 0;
  std::size_t kept = 0;
  for (const std::uint32_t id : order) {
    if (logits[id] < params.min_p * logits[order[0]]) break;
    if (params.top_k > 0 && kept == static_cast<std::size_t>(params.top_k)) break;
    all += logits[id];
    ++kept;
  }
  double mass = 0;
  std::vector<double> result(logits.size(), 0);
  for (std::size_t i = 0; i < kept && mass < params.top_p * all; ++i) {
    result[order[i]] = logits[order[i]];
    mass += logits[order[i]];
  }
  for (double& value : result) value /= mass;
  return result;
}

// The value that chi-square passes once in 1,000 times. Source: Wilson and Hilferty, 1931.
double chi_square_limit(double degrees) {
  const double share = 2 / (9 * degrees);
  return degrees * std::pow(1 - share + 3.09 * std::sqrt(share), 3);
}

void expect_distribution(const std::vector<float>& logits, const SamplingParams& params,
                         const std::vector<std::uint32_t>& output,
                         const std::vector<std::uint32_t>& drawn) {
  const auto expected = distribution({logits.begin(), logits.end()}, params, output);
  std::vector<double> counts(logits.size(), 0);
  for (const std::uint32_t id : drawn) ++counts[id];
  double chi_square = 0;
  int possible = 0;
  for (std::size_t id = 0; id < counts.size(); ++id) {
    if (expected[id] == 0) {
      EXPECT_EQ(counts[id], 0) << "token " << id << " was filtered out";
      continue;
    }
    const double mean = expected[id] * static_cast<double>(drawn.size());
    chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
    ++possible;
  }
  if (possible > 1) {
    EXPECT_LT(chi_square, chi_square_limit(possible - 1));
  }
}

TEST(Sampler, DrawsByTheDistributionThatEveryParameterMakes) {
  const std::vector<float> logits{1.5f, 0.2f, -0.7f, 1.1f, 0, -1.2f, 0.9f, 1.4f, -0.1f, 0.5f};
  const std::vector<std::uint32_t> output{3, 7, 3, 5};
  const auto with = [](auto set) {
    SamplingParams params;
    set(params);
    return params;
  };
  const std::vector<SamplingParams> cases{
      {},
      {.temperature = 0.3},
      {.temperature = 2.5},
      {.top_k = 4},
      {.top_p = 0.7},
      {.min_p = 0.3},
      {.temperature = 1.7, .top_p = 0.8, .top_k = 6, .min_p = 0.1},
      {.presence_penalty = 1.2},
      {.frequency_penalty = 0.6},
      {.presence_penalty = -1, .frequency_penalty = -0.4},
      {.repetition_penalty = 1.8},
      {.temperature = 0.8, .top_p = 0.9, .presence_penalty = 0.5, .repetition_penalty = 0.7},
      with([](SamplingParams& params) {
        params.logit_bias = {{2, 2.5f}, {0, -1.0f}};
      }),
  };
  Sampler sampler(logits.size());
  std::vector<std::uint32_t> tokens{0};
  tokens.insert(tokens.end(), output.begin(), output.end());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<std::uint32_t> drawn;
    for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
      drawn.push_back(sampler.sample(logits, {cases[i], seed, tokens, 1, {}})->chosen.token);
    }
    expect_distribution(logits, cases[i], output, drawn);
  }
}

// Of one seed, as the tokens of one sequence are drawn; also over a vocabulary of many blocks.
TEST(Sampler, DrawsByTheDistributionAlongASequence) {
  for (const std::size_t vocab : {std::size_t{8}, std::size_t{700}}) {
    std::vector<float> logits(vocab);
    for (std::size_t i = 0; i < vocab; ++i) logits[i] = 0.3f * static_cast<float>(i * 7 % 10);
    Sampler sampler(vocab);
    std::vector<std::uint32_t> tokens{0};
    std::vector<std::uint32_t> drawn;
    for (int place = 0; place < 30'000; ++place) {
      drawn.push_back(sampler.sample(logits, {{}, 42, tokens, 1, {}})->chosen.token);
      tokens.push_back(drawn.back());
    }
    expect_distribution(logits, {}, {}, drawn);
  }
}

TEST(Sampler, FiltersKeepTheLikeliest) {
  const std::vector<float> logits{0, std::log(2.f), std::log(4.f), std::log(3.f)};
  EXPECT_EQ(draws(logits, {.top_k = 1}, 50).size(), 1u);
  EXPECT_EQ(draws(logits, {.top_k = 2}, 200).size(), 2u);
  EXPECT_EQ(draws(logits, {.top_p = 0.39}, 200).size(), 1u);  // 0.4 is enough
  EXPECT_EQ(draws(logits, {.top_p = 0.69}, 200).size(), 2u);  // 0.4 + 0.3
  EXPECT_EQ(draws(logits, {.top_p = 1e-9}, 50).size(), 1u);   // never none
  EXPECT_EQ(draws(logits, {.min_p = 0.6}, 200).size(), 2u);   // 3 / 4 is over, 2 / 4 is not
  EXPECT_EQ(draws(logits, {.top_k = 100}, 500).size(), 4u);
}

TEST(Sampler, TopPOverALargeVocabularyKeepsTheSmallestSet) {
  // Token i has a weight of 0.99^i: the first n hold 1 - 0.99^n of the mass, 0.9 are held by 230.
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i) * std::log(0.99f);
  }
  const auto counts = draws(logits, {.top_p = 0.9}, 3000);
  EXPECT_LT(counts.rbegin()->first, 231u);
  EXPECT_GT(counts.rbegin()->first, 215u);
}

TEST(Sampler, TheSameSeedAndPlaceDrawTheSameToken) {
  const std::vector<float> logits(64, 0.0f);
  EXPECT_EQ(sample(logits, {}, 7)->chosen.token, sample(logits, {}, 7)->chosen.token);
  std::map<std::uint32_t, int> places;
  for (std::size_t k = 0; k < 40; ++k) {
    ++places[sample(logits, {}, 7, std::vector<std::uint32_t>(k, 1))->chosen.token];
  }
  EXPECT_GT(places.size(), 20u);
}

TEST(Sampler, PenalizesWhatWasSaid) {
  SamplingParams greedy{.temperature = 0};
  greedy.presence_penalty = 0.5;
  EXPECT_EQ(sampled({0, 2, 1.8f}, greedy, {1}), 2u);
  EXPECT_EQ(sampled({2, 1.8f, 0}, greedy), 0u);  // the prompt does not count

  SamplingParams by_count{.temperature = 0};
  by_count.frequency_penalty = 0.3;
  EXPECT_EQ(sampled({0, 2, 1.5f}, by_count, {1}), 1u);
  EXPECT_EQ(sampled({0, 2, 1.5f}, by_count, {1, 1}), 2u);

  SamplingParams repetition{.temperature = 0};
  repetition.repetition_penalty = 2;
  EXPECT_EQ(sampled({2, 1.5f, 0}, repetition), 1u);          // the prompt counts
  EXPECT_EQ(sampled({-1, -1.5f, -2}, repetition), 1u);       // and negative logits are multiplied
  EXPECT_EQ(sampled({2, 2, 0.5f}, repetition, {1, 1}), 0u);  // once, however often it was said
}

TEST(Sampler, CountsStartFromZeroForTheNextRow) {
  Sampler sampler(3);
  SamplingParams params{.temperature = 0};
  params.frequency_penalty = 1;
  const std::vector<std::uint32_t> said{0, 1, 1};
  const std::vector<std::uint32_t> nothing{0};
  const std::vector<float> logits{0, 2, 1.5f};
  EXPECT_EQ(sampler.sample(logits, {params, 1, said, 1, {}})->chosen.token, 2u);
  EXPECT_EQ(sampler.sample(logits, {params, 1, nothing, 1, {}})->chosen.token, 1u);
}

TEST(Sampler, BiasAllowedIdsAndMinTokens) {
  SamplingParams biased{.temperature = 0};
  biased.logit_bias = {{2, 100.0f}};
  EXPECT_EQ(sampled({3, 2, 1}, biased), 2u);

  SamplingParams allowed{.temperature = 0};
  allowed.allowed_token_ids = {1, 2};
  EXPECT_EQ(sampled({3, 2, 1}, allowed), 1u);

  SamplingParams longer{.temperature = 0};
  longer.min_tokens = 1;
  longer.stop_token_ids = {1};
  EXPECT_EQ(sampled({3, 2, 1}, longer, {}, {0}), 2u);
  EXPECT_EQ(sampled({3, 2, 1}, longer, {2}, {0}), 0u);
}

TEST(Sampler, LogprobsAreOfTheLogitsAsTheyAre) {
  SamplingParams params{.temperature = 0.1};
  params.top_k = 1;
  params.logprobs = 2;
  params.logit_bias = {{0, 50.0f}};
  const auto scored = sample({0, std::log(3.f), -kInf}, params);
  EXPECT_EQ(scored->chosen.token, 0u);
  EXPECT_NEAR(scored->chosen.logprob, std::log(0.25), 1e-6);
  EXPECT_EQ(scored->chosen.rank, 2u);
  ASSERT_EQ(scored->top.size(), 2u);
  EXPECT_EQ(scored->top[0].token, 1u);
  EXPECT_EQ(scored->top[0].rank, 1u);
  EXPECT_NEAR(scored->top[0].logprob, std::log(0.75), 1e-6);
}

TEST(Sampler, ScoresAGivenTokenAsItWouldASampledOne) {
  const std::vector<float> logits{0.3f, -1.7f, 2.2f, 0.9f};
  SamplingParams params;
  params.logprobs = 0;
  const auto drawn = sample(logits, params, 3);
  const auto scored = Sampler(4).score(logits, drawn->chosen.token, 0);
  EXPECT_EQ(scored->chosen.logprob, drawn->chosen.logprob);
  EXPECT_EQ(scored->chosen.rank, drawn->chosen.rank);
}

TEST(Sampler, RefusesLogitsThatAreNoDistribution) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sample({1, nan, 0}, {}).error().code(), ErrorCode::kInternal);
  EXPECT_EQ(sample({1, kInf, 0}, {}).error().code(), ErrorCode::kInternal);
  EXPECT_EQ(Sampler(2).score(std::vector<float>{nan, nan}, 0, 1).error().code(),
            ErrorCode::kInternal);
  SamplingParams none{};
  none.allowed_token_ids = {1};
  EXPECT_EQ(sample({1, -kInf, 0}, none).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Sampler, AnyTemperatureAndFilterGivesAToken) {
  const std::vector<float> logits{-kInf, 5, 80, -90};
  for (const double temperature : {1e-300, 1e-4, 1.0, 1e6}) {
    for (const double top_p : {1e-12, 0.5, 0.999999, 1.0}) {
      const auto token = sampled(logits, {.temperature = temperature, .top_p = top_p});
      EXPECT_TRUE(token > 0 && token < 4);
    }
  }
}

}  // namespace
}  // namespace weft
