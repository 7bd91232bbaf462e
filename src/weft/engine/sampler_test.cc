#include "weft/engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>

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

TEST(Sampler, DrawsByTheDistribution) {
  // 0.1, 0.2, 0.3, 0.4. Chi-square with 3 degrees of freedom: 16.27 is passed once in 1,000 times.
  const std::vector<float> logits{std::log(1.f), std::log(2.f), std::log(3.f), std::log(4.f)};
  constexpr int kDraws = 20'000;
  auto counts = draws(logits, {}, kDraws);
  double chi_square = 0;
  for (std::uint32_t id = 0; id < 4; ++id) {
    const double expected = kDraws * 0.1 * (id + 1);
    chi_square += std::pow(counts[id] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 16.27);
}

TEST(Sampler, DividesByTheTemperature) {
  // At temperature 0.5 the odds 1 to 3 become 1 to 9.
  auto counts = draws({0, std::log(3.f)}, {.temperature = 0.5}, 10'000);
  EXPECT_NEAR(counts[0], 1000, 100);
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
