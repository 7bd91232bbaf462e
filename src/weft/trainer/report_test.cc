#include "weft/trainer/report.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::HasSubstr;

StepMetrics metrics(std::uint64_t step) {
  StepMetrics m;
  m.step = step;
  m.version = "step-" + std::to_string(step);
  m.reward = m.solve_rate = 0.5;
  m.tokens = 100;
  m.versions = {.checked = 10, .wrong = 0, .discriminating = 6};
  m.sync_bytes = 1000;
  m.sync_ms = 10;
  m.pause_us = 100.0 * static_cast<double>(step);
  m.logprobs.most = 1e-5 * static_cast<double>(step);
  return m;
}

TEST(StepJson, LeavesOutWhatWasNotMeasured) {
  StepMetrics m = metrics(1);
  EXPECT_EQ(boost::json::parse(step_json(m)).as_object().count("greedy_solve_rate"), 0u);

  m.greedy_solve_rate = 0.25;
  EXPECT_EQ(boost::json::parse(step_json(m)).at("greedy_solve_rate").as_double(), 0.25);
}

TEST(SummaryJson, SumsOverTheSteps) {
  const std::vector<StepMetrics> steps{metrics(1), metrics(2), metrics(3)};
  RunSummary summary;
  summary.task = "sort";
  summary.seconds = 3;
  summary.versions = {.checked = 30, .wrong = 0, .discriminating = 18};
  const auto json = boost::json::parse(summary_json(summary, steps)).as_object();

  EXPECT_EQ(json.at("updates").to_number<int>(), 3);
  EXPECT_EQ(json.at("bytes_per_update").to_number<int>(), 1000);
  EXPECT_NEAR(json.at("sync_share").to_number<double>(), 0.01, 1e-12);
  EXPECT_NEAR(json.at("pause_ms_p50").to_number<double>(), 0.2, 1e-12);
  EXPECT_NEAR(json.at("pause_ms_p99").to_number<double>(), 0.3, 1e-12);
  EXPECT_NEAR(json.at("logprob_max_abs_diff").to_number<double>(), 3e-5, 1e-12);
  EXPECT_EQ(json.at("tokens_checked").to_number<int>(), 30);
  EXPECT_NEAR(json.at("discriminating_share").to_number<double>(), 0.6, 1e-12);
  EXPECT_EQ(json.count("failure"), 0u);
}

TEST(StepJson, IsReadAgain) {
  StepMetrics m = metrics(3);
  m.kl = 0.1 + 0.2;
  m.lag_max = 4;
  const auto again = parse_step_json(step_json(m));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->version, "step-3");
  EXPECT_EQ(again->lag_max, 4u);
  EXPECT_DOUBLE_EQ(*again->kl, 0.1 + 0.2);
  EXPECT_DOUBLE_EQ(again->logprobs.most, m.logprobs.most);
  EXPECT_FALSE(again->greedy_solve_rate);

  EXPECT_THAT(parse_step_json(R"({"step": 1, "version": 2})").error().message(),
              HasSubstr("a step's version is missing or wrong"));
  EXPECT_FALSE(parse_step_json("[]"));
  EXPECT_FALSE(parse_step_json(R"({"step": 1)"));
}

TEST(Percentile, IsTheNearestRank) {
  EXPECT_EQ(percentile({}, 50), 0);
  EXPECT_EQ(percentile({5}, 99), 5);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 50), 2);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 99), 4);
}

}  // namespace
}  // namespace weft
