#include "weft/trainer/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;

TEST(PackRows, FillsRowsLongestFirst) {
  EXPECT_THAT(pack_rows(std::vector<std::size_t>{3, 6, 2, 5, 4}, 10),
              ElementsAre(ElementsAre(1, 4), ElementsAre(3, 0, 2)));
}

TEST(PackRows, GivesRowsOfTheirOwnToWhatIsLonger) {
  EXPECT_THAT(pack_rows(std::vector<std::size_t>{3, 12}, 10),
              ElementsAre(ElementsAre(1), ElementsAre(0)));
  EXPECT_EQ(pack_rows(std::vector<std::size_t>{1, 1, 1}, 0).size(), 3u);
}

}  // namespace
}  // namespace weft
