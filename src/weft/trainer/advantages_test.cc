#include "weft/trainer/advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/golden_cases.h"

namespace weft {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(GroupAdvantages, EqualTorchs) {
  for (const char* const name : {"grpo_tokens", "grpo_longest"}) {
    const GoldenCase golden(name);
    expect_near(group_advantages(golden.list("rewards"), 2, golden.flag("by_deviation")),
                golden.list("advantages"));
  }
}

TEST(GroupAdvantages, AreZeroWhereAllAnswersAreAlike) {
  EXPECT_THAT(group_advantages(std::vector<double>{1, 1, 0, 0}, 2, true), Each(0.0));
}

TEST(LeaveOneOutAdvantages, EqualTorchs) {
  const GoldenCase golden("rloo");
  expect_near(leave_one_out_advantages(golden.list("rewards"), 2), golden.list("advantages"));
  EXPECT_THAT(leave_one_out_advantages(std::vector<double>{1, 0, 2}, 3), ElementsAre(0, -1.5, 1.5));
}

TEST(GeneralizedAdvantages, EqualTorchsAsTheyAreAndWhitened) {
  const GoldenCase golden("gae");
  std::vector<double> advantages =
      generalized_advantages(golden.list("rewards"), golden.list("values"), golden.number("gamma"),
                             golden.number("lambda_"));
  expect_near(advantages, golden.list("advantages"));
  whiten(advantages);
  expect_near(advantages, golden.list("whitened"));
}

TEST(GeneralizedAdvantages, WithLambdaOneAreReturnsLessValues) {
  EXPECT_THAT(
      generalized_advantages(std::vector<double>{0, 0, 1}, std::vector<double>{0.5, 0.25, 1}, 1, 1),
      ElementsAre(0.5, 0.75, 0));
}

}  // namespace
}  // namespace weft
