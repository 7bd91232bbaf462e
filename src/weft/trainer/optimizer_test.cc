#include "weft/trainer/optimizer.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ScheduleShare, BeginsAtOneAndEndsNearZero) {
  EXPECT_EQ(schedule_share(Schedule::kConstant, 10, 10, 0), 1);
  EXPECT_EQ(schedule_share(Schedule::kLinear, 1, 10, 0), 1);
  EXPECT_DOUBLE_EQ(schedule_share(Schedule::kLinear, 10, 10, 0), 0.1);
  EXPECT_EQ(schedule_share(Schedule::kCosine, 1, 10, 0), 1);
  EXPECT_DOUBLE_EQ(schedule_share(Schedule::kCosine, 6, 10, 0), 0.5);
  EXPECT_LT(schedule_share(Schedule::kCosine, 10, 10, 0), 0.03);
}

TEST(ScheduleShare, WarmsUpLinearly) {
  EXPECT_DOUBLE_EQ(schedule_share(Schedule::kConstant, 1, 10, 3), 0.25);
  EXPECT_DOUBLE_EQ(schedule_share(Schedule::kConstant, 4, 10, 3), 1);
}

}  // namespace
}  // namespace weft
