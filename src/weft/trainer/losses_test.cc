#include "weft/trainer/losses.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/golden_cases.h"

namespace weft {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

std::vector<double> per_token(std::span<const double> values, std::span<const std::size_t> tokens) {
  std::vector<double> result;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    result.insert(result.end(), tokens[i], values[i]);
  }
  return result;
}

TEST(ClippedPolicyLoss, WithImportanceWeightsEqualsTrls) {
  const GoldenCase golden("grpo_importance");
  std::vector<double> weights = golden.list("importance");
  for (double& weight : weights) weight /= static_cast<double>(weights.size());

  const Loss loss = clipped_policy_loss(
      golden.list("logprobs"), golden.list("old"),
      per_token(golden.list("advantages"), golden.sizes("lengths")), weights, 0.2, 0.28);
  expect_near(loss.value, golden.number("loss"));
  expect_near(loss.gradient, golden.list("gradient"));
}

TEST(ClippedPolicyLoss, HasItsGradient) {
  const GoldenCase golden("grpo_tokens");
  const std::vector<double> old = golden.list("old"), weights(old.size(), 0.1);
  const auto advantages = per_token(golden.list("advantages"), golden.sizes("lengths"));
  const auto loss = [&](std::span<const double> logprobs) {
    return clipped_policy_loss(logprobs, old, advantages, weights, 0.2, 0.28);
  };
  const std::vector<double> at = golden.list("logprobs");

  EXPECT_GT(loss(at).clipped, 0u);
  expect_gradient([&](auto logprobs) { return loss(logprobs).value; }, at, loss(at).gradient);
}

TEST(ClippedAnswerLoss, EqualsTrlsRloo) {
  const GoldenCase golden("rloo");
  const Loss loss =
      clipped_answer_loss(golden.list("logprobs"), golden.list("old"), golden.sizes("lengths"),
                          golden.list("advantages"), std::vector<double>(4, 0.25), 0.2, 0.2);
  expect_near(loss.value, golden.number("loss"));
  expect_near(loss.gradient, golden.list("gradient"));
}

TEST(ClippedAnswerLoss, HasItsGradient) {
  const GoldenCase golden("rloo");
  const std::vector<double> old = golden.list("old"), at = golden.list("logprobs");
  const auto loss = [&](std::span<const double> logprobs) {
    return clipped_answer_loss(logprobs, old, golden.sizes("lengths"), golden.list("advantages"),
                               std::vector<double>(4, 0.25), 0.2, 0.2);
  };
  expect_gradient([&](auto logprobs) { return loss(logprobs).value; }, at, loss(at).gradient);
}

TEST(ClippedValueLoss, EqualsTorchsWithItsGradient) {
  const GoldenCase golden("value");
  const std::vector<double> old = golden.list("old_values"), returns = golden.list("returns");
  const std::vector<double> at = golden.list("values");
  const auto loss = [&](std::span<const double> values) {
    return clipped_value_loss(values, old, returns, 0.2, 1 / static_cast<double>(old.size()));
  };
  expect_near(loss(at).value, golden.number("loss"));
  expect_near(loss(at).gradient, golden.list("gradient"));
  EXPECT_GT(loss(at).clipped, 0u);
  expect_gradient([&](auto values) { return loss(values).value; }, at, loss(at).gradient);
}

TEST(CrossEntropy, CountsTokensByTheirWeights) {
  const Loss loss =
      cross_entropy(std::vector<double>{-1, -2, -4}, std::vector<double>{0, 0.5, 0.5});
  EXPECT_EQ(loss.value, 3);
  EXPECT_THAT(loss.gradient, ElementsAre(0, -0.5, -0.5));
}

TEST(BradleyTerryLoss, EqualsTorchsWithItsGradient) {
  for (const bool with_margins : {false, true}) {
    const GoldenCase golden(with_margins ? "bradley_terry_margins" : "bradley_terry");
    const std::vector<double> margins =
        with_margins ? golden.list("margins") : std::vector<double>{};
    std::vector<double> at = golden.list("chosen");
    const std::size_t count = at.size();
    for (const double reward : golden.list("rejected")) at.push_back(reward);
    const auto loss = [&](std::span<const double> rewards) {
      return bradley_terry_loss(rewards.first(count), rewards.subspan(count), margins);
    };
    expect_near(loss(at).value, golden.number("loss"));
    expect_near(loss(at).gradient, golden.list("gradient"));
    expect_gradient([&](auto rewards) { return loss(rewards).value; }, at, loss(at).gradient);
  }
}

TEST(PreferenceLoss, EqualsTorchsWithItsSlope) {
  for (const auto kind : {PreferenceLoss::kDpo, PreferenceLoss::kIpo}) {
    const GoldenCase golden(kind == PreferenceLoss::kDpo ? "dpo" : "ipo");
    const std::vector<double> chosen = golden.list("chosen"), rejected = golden.list("rejected");
    const std::vector<double> reference_chosen = golden.list("reference_chosen");
    const std::vector<double> reference_rejected = golden.list("reference_rejected");
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto loss = [&](double from) {
        return preference_loss(kind, from, rejected[i], reference_chosen[i], reference_rejected[i],
                               golden.number("beta"));
      };
      expect_near(loss(chosen[i]).value, golden.list("values")[i]);
      expect_near(loss(chosen[i]).slope, golden.list("slopes")[i]);
      expect_gradient([&](auto from) { return loss(from[0]).value; }, std::span(&chosen[i], 1),
                      std::vector<double>{loss(chosen[i]).slope});
    }
  }
}

TEST(PreferenceLoss, IsFiniteFarFromZero) {
  EXPECT_EQ(preference_loss(PreferenceLoss::kDpo, 0, -1e5, 0, 0, 1).value, 0);
  EXPECT_EQ(preference_loss(PreferenceLoss::kDpo, -1e5, 0, 0, 0, 1).value, 1e5);
}

TEST(ImportanceWeights, EqualTorchs) {
  const GoldenCase golden("importance");
  expect_near(truncated_importance_weights(golden.list("old"), golden.list("sampled"),
                                           golden.number("cap")),
              golden.list("weights"));
}

TEST(ImportanceWeights, OfAWholeAnswerAreTheProductOfItsTokensCut) {
  const std::vector<double> old{-1, -2, -3}, sampled{-1.5, -1.75, -3};
  EXPECT_DOUBLE_EQ(truncated_answer_importance(old, sampled, 2), std::exp(0.25));
  EXPECT_EQ(truncated_answer_importance(old, sampled, 1.25), 1.25);
}

TEST(OverlongPenalty, FallsFromZeroToMinusOneInTheBuffer) {
  EXPECT_EQ(overlong_penalty(6, true, 10, 4), 0);
  EXPECT_EQ(overlong_penalty(8, true, 10, 4), -0.5);
  EXPECT_EQ(overlong_penalty(10, true, 10, 4), -1);
  EXPECT_EQ(overlong_penalty(10, false, 10, 4), -1);
}

}  // namespace
}  // namespace weft
