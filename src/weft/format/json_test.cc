#include "weft/format/json.h"

#include <string>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace weft {
namespace {

std::string canonical(std::string_view text) {
  return canonical_json(parse_json(text).value());
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  const auto value =
      parse_json(R"( {"a":[1,-2,18446744073709551615,1.5,true,null],"b":"\u00e9"} )");

  EXPECT_EQ(boost::json::serialize(*value),
            "{\"a\":[1,-2,18446744073709551615,1.5E0,true,null],\"b\":\"\xc3\xa9\"}");
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1,}", "nul", "01", "1 2", "'a'", "/**/1",
                           "NaN", "\"\xff\"", "\"\\ud800\"", "\"\t\"", "{a:1}"}) {
    EXPECT_EQ(parse_json(text).error().code(), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(ParseJson, RefusesANameGivenTwiceHoweverItIsSpelt) {
  EXPECT_NE(parse_json(R"({"ab":1,"\u0061b":2})").error().message().find("`ab` is named twice"),
            std::string::npos);
  EXPECT_FALSE(parse_json(R"({"x":{"a":1},"y":[{"a":1,"b":{},"a":1}]})").has_value());
  EXPECT_TRUE(parse_json(R"({"a":{"a":[{"a":1},{"a":2}]},"b":{"a":1}})").has_value());
}

TEST(ParseJson, ReadsNoDeeperThanTheLimit) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth)).has_value());
  EXPECT_FALSE(parse_json(nested(kMaxJsonDepth + 1)).has_value());
  EXPECT_FALSE(parse_json(std::string(10'000'000, '[')).has_value());
}

TEST(CanonicalJson, SortsMembersByUtf16) {
  // U+10000 is D800 DC00 in UTF-16, before U+E000; in UTF-8 it comes after. Source: RFC
  // 8785, 3.2.3.
  EXPECT_EQ(
      canonical("{\"\xee\x80\x80\":1,\"\xf0\x90\x80\x80\":2,\"b\":3,\"\":4,\"aa\":5,\"a\":6}"),
      "{\"\":4,\"a\":6,\"aa\":5,\"b\":3,\"\xf0\x90\x80\x80\":2,\"\xee\x80\x80\":1}");
}

TEST(CanonicalJson, WritesTheShortestEscapes) {
  EXPECT_EQ(canonical(R"( [ "\u0022\u005c\/\u0008\u000c\n\r\t\u0001\u001F\u007f\u20ac" ] )"),
            "[\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xe2\x82\xac\"]");
}

TEST(CanonicalJson, IsAFixedPoint) {
  const std::string text = canonical(R"({"z":[{},[],{"k":-1}],"y":{"b":null,"a":false}})");

  EXPECT_EQ(text, R"({"y":{"a":false,"b":null},"z":[{},[],{"k":-1}]})");
  EXPECT_EQ(canonical(text), text);
}

TEST(StringMember, IsEmptyWhereThereIsNoString) {
  const auto value = parse_json(R"({"a":"text","b":1})").value();
  const auto& object = value.get_object();

  EXPECT_EQ(string_member(object, "a"), "text");
  EXPECT_EQ(string_member(object, "b"), "");
  EXPECT_EQ(string_member(object, "c"), "");
}

}  // namespace
}  // namespace weft
