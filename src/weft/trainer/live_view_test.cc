#include "weft/trainer/live_view.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(LiveView, ShowsTheLastStepAndHowItCameThere) {
  std::vector<StepMetrics> steps(3);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = i + 1;
    steps[i].version = "step-" + std::to_string(i + 1);
    steps[i].reward = 0.25 * static_cast<double>(i);
    steps[i].dropped_old = 2;
  }
  steps[1].greedy_solve_rate = 0.625;
  RunSummary summary;
  summary.task = "sort";
  const std::string view = live_view(summary, steps, 9, 150);

  EXPECT_EQ(std::ranges::count(view, '\n'), 6);
  EXPECT_THAT(view, HasSubstr("sort, seed 0: step 3 of 9, 2:30 min, about 5:00 min left\n"));
  EXPECT_THAT(view, HasSubstr("reward    0.500  ▁▄█\n"));
  EXPECT_THAT(view, HasSubstr("greedy 0.625 sampled 0.000 at step 2"));
  EXPECT_THAT(view, HasSubstr("dropped 6"));
  EXPECT_THAT(view, HasSubstr("step-3"));
  EXPECT_THAT(view, Not(HasSubstr("KL"))) << "it was not measured";
}

}  // namespace
}  // namespace weft
