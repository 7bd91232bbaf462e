#include "weft/http/representation.h"

#include <gtest/gtest.h>

namespace weft::http {
namespace {

Representation blob() {
  Representation made;
  made.etag = etag_of("blake3:ab");
  made.size_bytes = 1000;
  made.cache_control = kImmutable;
  return made;
}

Selection ask(Headers headers, const Representation& representation = blob(),
              std::string method = "GET") {
  Request request;
  request.method = std::move(method);
  request.headers = std::move(headers);
  return select(request, representation);
}

std::string field(const Selection& selection, std::string_view name) {
  return std::string(selection.head.headers.try_get(name).value_or(""));
}

TEST(Representation, IsSentWholeWithWhatCachesNeed) {
  const Selection all = ask({});

  EXPECT_EQ(all.head.status, 200);
  EXPECT_EQ(all.offset_bytes, 0u);
  EXPECT_EQ(all.size_bytes, 1000u);
  EXPECT_EQ(field(all, "ETag"), "\"blake3:ab\"");
  EXPECT_EQ(field(all, "Accept-Ranges"), "bytes");
  EXPECT_EQ(field(all, "Content-Type"), "application/octet-stream");
  EXPECT_EQ(field(all, "Cache-Control"), "public, max-age=31536000, immutable, no-transform");
  EXPECT_EQ(field(all, "Content-Range"), "");
}

TEST(Representation, SendsOneRange) {
  const struct {
    const char* range;
    std::uint64_t offset, size;
    const char* content_range;
  } cases[] = {
      {"bytes=0-0", 0, 1, "bytes 0-0/1000"},
      {"bytes=10-19", 10, 10, "bytes 10-19/1000"},
      {"bytes=990-", 990, 10, "bytes 990-999/1000"},
      {"bytes=0-", 0, 1000, "bytes 0-999/1000"},
      {"bytes=990-5000", 990, 10, "bytes 990-999/1000"},
      {"bytes=0-99999999999999999999999", 0, 1000, "bytes 0-999/1000"},
      {"bytes=-1", 999, 1, "bytes 999-999/1000"},
      {"bytes=-5000", 0, 1000, "bytes 0-999/1000"},
      {"Bytes= 5-6 ", 5, 2, "bytes 5-6/1000"},
  };
  for (const auto& test : cases) {
    const Selection part = ask({{"Range", test.range}});
    EXPECT_EQ(part.head.status, 206) << test.range;
    EXPECT_EQ(part.offset_bytes, test.offset) << test.range;
    EXPECT_EQ(part.size_bytes, test.size) << test.range;
    EXPECT_EQ(field(part, "Content-Range"), test.content_range);
    EXPECT_EQ(field(part, "ETag"), "\"blake3:ab\"");
  }
}

TEST(Representation, IgnoresRangesThatAreSeveralOrMalformed) {
  for (const char* range : {"bytes=0-1,5-6", "bytes=5-4", "bytes=", "bytes=-", "bytes=a-b",
                            "bytes=1", "bytes 0-1", "lines=0-1", "bytes=0-1x", "bytes=0--1", ""}) {
    const Selection all = ask({{"Range", range}});
    EXPECT_EQ(all.head.status, 200) << range;
    EXPECT_EQ(all.size_bytes, 1000u) << range;
  }
  EXPECT_EQ(ask({{"Range", "bytes=0-1"}}, blob(), "HEAD").head.status, 200);
}

TEST(Representation, RefusesARangeBeyondTheEnd) {
  for (const char* range :
       {"bytes=1000-", "bytes=1000-2000", "bytes=-0", "bytes=99999999999999999999999-"}) {
    const Selection none = ask({{"Range", range}});
    EXPECT_EQ(none.head.status, 416) << range;
    EXPECT_EQ(field(none, "Content-Range"), "bytes */1000");
    EXPECT_EQ(field(none, "Cache-Control"), "no-store");
    EXPECT_EQ(none.size_bytes, 0u);
  }
  Representation empty = blob();
  empty.size_bytes = 0;
  EXPECT_EQ(ask({{"Range", "bytes=0-"}}, empty).head.status, 416);
  EXPECT_EQ(ask({}, empty).head.status, 200);
}

TEST(Representation, SendsARangeOnlyOfWhatIfRangeNames) {
  const auto status = [](const char* condition) {
    return ask({{"Range", "bytes=0-1"}, {"If-Range", condition}}).head.status;
  };
  EXPECT_EQ(status("\"blake3:ab\""), 206);
  EXPECT_EQ(status("\"blake3:cd\""), 200);
  EXPECT_EQ(status("W/\"blake3:ab\""), 200);
  EXPECT_EQ(status("Wed, 21 Oct 2026 07:28:00 GMT"), 200);
}

TEST(Representation, IsNotSentAgainToWhoHasIt) {
  for (const char* tags : {"\"blake3:ab\"", "W/\"blake3:ab\"", "*", "\"x\", \"blake3:ab\"",
                           "\"a,b\" ,, W/\"blake3:ab\"", "\t*"}) {
    for (const char* method : {"GET", "HEAD"}) {
      const Selection none = ask({{"If-None-Match", tags}, {"Range", "bytes=0-1"}}, blob(), method);
      EXPECT_EQ(none.head.status, 304) << tags;
      EXPECT_EQ(none.size_bytes, 0u);
      EXPECT_EQ(field(none, "ETag"), "\"blake3:ab\"");
      EXPECT_EQ(field(none, "Cache-Control"), kImmutable);
    }
  }
  EXPECT_EQ(ask({{"If-None-Match", "\"x\""}, {"If-None-Match", "\"blake3:ab\""}}).head.status, 304);
  for (const char* tags : {"\"x\"", "blake3:ab", "\"blake3:ab", "", "\"x, *\"", "\"blake3:AB\""}) {
    EXPECT_EQ(ask({{"If-None-Match", tags}}).head.status, 200) << tags;
  }
}

TEST(Representation, IsRefusedToWhoWantsAnother) {
  EXPECT_EQ(ask({{"If-Match", "\"x\", \"blake3:ab\""}}).head.status, 200);
  EXPECT_EQ(ask({{"If-Match", "*"}}).head.status, 200);
  for (const char* tags : {"\"x\"", "W/\"blake3:ab\"", "blake3:ab", ""}) {
    const Selection none = ask({{"If-Match", tags}, {"If-None-Match", "*"}});
    EXPECT_EQ(none.head.status, 412) << tags;
    EXPECT_NE(none.head.body.find("blake3:ab"), std::string::npos);
  }
}

TEST(TryMatch, TellsWhatDoesNotExist) {
  const auto match = [](const char* name, const char* value) {
    return try_match(Headers{{name, value}}, "If-None-Match", "", Comparison::kWeak);
  };
  EXPECT_EQ(match("If-None-Match", "*"), false);
  EXPECT_EQ(match("If-None-Match", "\"\""), false);
  EXPECT_EQ(match("Other", "*"), std::nullopt);
}

}  // namespace
}  // namespace weft::http
