#include "weft/transfer/internal/block_holders.h"

#include <gtest/gtest.h>

namespace weft::internal {
namespace {

using std::chrono::seconds;

struct Held {
  BlockHolders holders;
  const BlockHolders::Block block{7, 2, 3};
  unsigned closed = 0;
  const Instant start{};

  Held() {
    holders.hold(
        block, [this] { ++closed; }, start);
  }
};

TEST(BlockHolders, ASilentOneGivesWay) {
  Held held;
  held.holders.want(held.block, held.start + seconds(4));
  EXPECT_EQ(held.closed, 0u);
  held.holders.want(held.block, held.start + seconds(5));
  EXPECT_EQ(held.closed, 1u);
}

TEST(BlockHolders, OneThatBringsBytesStays) {
  Held held;
  held.holders.touch(held.block, held.start + seconds(10));
  held.holders.want(held.block, held.start + seconds(14));
  EXPECT_EQ(held.closed, 0u);
  held.holders.want(held.block, held.start + seconds(15));
  EXPECT_EQ(held.closed, 1u);
}

TEST(BlockHolders, NobodyElseIsEnded) {
  Held held;
  const Instant late = held.start + seconds(100);
  held.holders.want({8, 2, 3}, late);
  held.holders.want({7, 1, 3}, late);
  held.holders.want({7, 2, 2}, late);
  EXPECT_EQ(held.closed, 0u);
  held.holders.drop(held.block);
  held.holders.want(held.block, late);
  EXPECT_EQ(held.closed, 0u);
}

}  // namespace
}  // namespace weft::internal
