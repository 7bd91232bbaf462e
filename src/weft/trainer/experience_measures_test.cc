#include "weft/trainer/experience_measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/trainer/version_label.h"

namespace weft {
namespace {

using testing::ElementsAre;

// Three problems with two answers each; every answer has two tokens, sampled from these versions.
Experience experience_from(const std::vector<std::pair<std::string, std::string>>& versions) {
  Experience experience;
  experience.group_size = 2;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (i % 2 == 0) experience.problems.push_back({std::to_string(i / 2) + ">", ""});
    Rollout rollout;
    rollout.tokens = {static_cast<std::uint32_t>(i), 13};
    rollout.logprobs = {0, 0};
    const auto& [first, second] = versions[i];
    rollout.versions = {{first, 0, first == second ? 2u : 1u}};
    if (first != second) rollout.versions.push_back({second, 1, 2});
    experience.rollouts.push_back(rollout);
    experience.prompts.push_back({static_cast<std::uint32_t>(i)});
    experience.rewards.push_back(static_cast<double>(i));
    experience.rule_rewards.push_back(static_cast<double>(i));
  }
  return experience;
}

TEST(AppendProblems, FillsUpWithWholeGroups) {
  const std::vector<std::pair<std::string, std::string>> four(4, {"step-5", "step-5"});
  Experience filled = experience_from({});
  append_problems(filled, experience_from(four), 3);
  append_problems(filled, experience_from(four), 3);

  EXPECT_EQ(filled.problems.size(), 3u);
  EXPECT_THAT(filled.rewards, ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_EQ(filled.rollouts.size(), 6u);
}

TEST(WinRate, CountsTiesAsHalf) {
  EXPECT_EQ(win_rate(std::vector<double>{1, 0, 0.5, 0.5}, std::vector<double>{0, 1, 0.5, 0.25}),
            0.625);
}

TEST(VersionLabel, IsReadAsItIsWritten) {
  EXPECT_EQ(try_version_of(version_label(17)), 17u);
  for (const char* const other : {"", "step-", "step-x", "step-1x", "step--1", "default"}) {
    EXPECT_FALSE(try_version_of(other)) << other;
  }
}

TEST(Lag, IsThatOfTheOldestToken) {
  const Experience experience =
      experience_from({{"step-5", "step-5"}, {"step-3", "step-5"}, {"default", "step-5"}});

  EXPECT_EQ(lag_of(experience.rollouts[0], 5), 0u);
  EXPECT_EQ(lag_of(experience.rollouts[1], 5), 2u);
  EXPECT_EQ(lag_of(experience.rollouts[2], 5), 6u);
}

TEST(Lag, IsMeasuredOverTokens) {
  const Experience experience = experience_from({{"step-5", "step-5"}, {"step-3", "step-5"}});
  StepMetrics metrics;
  measure_experience(experience, 5, metrics);

  EXPECT_EQ(metrics.answers, 2u);
  EXPECT_EQ(metrics.tokens, 4u);
  EXPECT_DOUBLE_EQ(metrics.reward, 0.5);
  EXPECT_DOUBLE_EQ(metrics.solve_rate, 0.5);
  EXPECT_EQ(metrics.lag_max, 2u);
  EXPECT_DOUBLE_EQ(metrics.lag_mean, 0.5);
  EXPECT_EQ(metrics.answers_spanning, 1u);
}

TEST(DropOld, DropsWholeGroupsPastTheBound) {
  const std::string now = "step-5", edge = "step-3", old = "step-2";
  Experience experience =
      experience_from({{now, now}, {old, now}, {now, now}, {edge, now}, {now, now}, {now, now}});

  EXPECT_EQ(drop_old(experience, 5, 2), 2u);
  EXPECT_EQ(experience.problems.size(), 2u);
  EXPECT_EQ(experience.problems[0].question, "1>");
  EXPECT_THAT(experience.rewards, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(experience.rule_rewards, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(experience.rollouts[0].tokens[0], 2u);
  EXPECT_EQ(experience.prompts.size(), 4u);

  EXPECT_EQ(drop_old(experience, 9, 2), 4u);
  EXPECT_TRUE(experience.rollouts.empty());
}

}  // namespace
}  // namespace weft
