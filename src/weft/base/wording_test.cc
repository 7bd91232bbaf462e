#include "weft/base/wording.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Wording, OneIsSingular) {
  EXPECT_EQ(counted(0, "block"), "0 blocks");
  EXPECT_EQ(counted(1, "block"), "1 block");
  EXPECT_EQ(counted(2, "block"), "2 blocks");
}

TEST(Wording, WhatIsPrintedDoesNothingToATerminal) {
  EXPECT_EQ(printable("a\x1b[31m\r\nb\x7f"), "a\\x1b[31m\\x0d\\x0ab\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m \xff\xc3"),
            "\\xc2\\x9b31m \\xff\\xc3");
}

TEST(Wording, TextOfAllLanguagesStays) {
  EXPECT_EQ(printable("a\xc2\xa0\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "a\xc2\xa0\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
}

}  // namespace
}  // namespace weft
