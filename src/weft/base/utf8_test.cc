#include "weft/base/utf8.h"

#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

std::string encoded(unsigned point) {
  const auto byte = [](unsigned value) { return static_cast<char>(value); };
  const auto tail = [&](unsigned shift) { return byte(0x80 | ((point >> shift) & 0x3F)); };
  if (point < 0x80) return {byte(point)};
  if (point < 0x800) return {byte(0xC0 | (point >> 6)), tail(0)};
  if (point < 0x10000) return {byte(0xE0 | (point >> 12)), tail(6), tail(0)};
  return {byte(0xF0 | (point >> 18)), tail(12), tail(6), tail(0)};
}

TEST(Utf8, EveryCodePointIsOneButTheSurrogates) {
  for (unsigned point = 0; point < 0x110000; ++point) {
    const bool is_surrogate = 0xD800 <= point && point < 0xE000;
    ASSERT_EQ(is_utf8(encoded(point)), !is_surrogate) << point;
  }
  EXPECT_FALSE(is_utf8(encoded(0x110000)));
}

TEST(Utf8, EveryCutAndEveryWrongTailIsRefused) {
  for (const unsigned point : {0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    const std::string whole = encoded(point);
    for (std::size_t i = 1; i < whole.size(); ++i) {
      std::string wrong = whole;
      EXPECT_FALSE(is_utf8(whole.substr(0, i))) << point << ' ' << i;
      EXPECT_FALSE(is_utf8(whole.substr(i))) << point << ' ' << i;
      wrong[i] = 'a';
      EXPECT_FALSE(is_utf8(wrong)) << point << ' ' << i;
    }
  }
}

TEST(Utf8, OverlongFormsAreRefused) {
  for (const char* text : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xFF"}) {
    EXPECT_FALSE(is_utf8(text)) << text;
  }
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"));
}

}  // namespace
}  // namespace weft
