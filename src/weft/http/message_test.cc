// Messages, wire format and routes as text: no sockets.
#include "weft/http/message.h"

#include <string>

#include <gtest/gtest.h>

#include "weft/base/utf8.h"
#include "weft/http/router.h"
#include "weft/http/wire.h"

namespace weft::http {
namespace {

TEST(Headers, CompareNamesWithoutCase) {
  Headers headers{{"Content-Type", "a"}, {"X-A", "1"}, {"x-a", "2"}};

  EXPECT_EQ(headers.try_get("content-type"), "a");
  headers.set("X-a", "3");
  EXPECT_EQ(headers.try_get("x-A"), "3");
  EXPECT_EQ(std::distance(headers.begin(), headers.end()), 2);
  EXPECT_FALSE(headers.try_get("absent").has_value());
}

TEST(Percent, EncodeThenDecodeIsTheIdentity) {
  std::string all = "\xC3\xA9\xE2\x82\xAC";
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);

  const auto decoded = percent_decode(percent_encode(all));

  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(*decoded, all);
  EXPECT_EQ(percent_encode("a b/c"), "a%20b%2Fc");
  EXPECT_EQ(percent_decode("%41").value(), "A");
}

TEST(Percent, RefusesBadEscapes) {
  for (const char* text : {"%", "%4", "a%", "%zz", "%4g", "%-1"}) {
    EXPECT_FALSE(percent_decode(text).has_value()) << text;
  }
}

TEST(Percent, RefusesWhatIsNoUtf8) {
  for (const char* text : {"%ff", "\xff", "a%C3", "%ED%A0%80"}) {
    const auto decoded = percent_decode(text);
    ASSERT_FALSE(decoded.has_value()) << text;
    EXPECT_TRUE(is_utf8(decoded.error().message())) << text;
  }
}

TEST(UrlParse, TakesHostPortAndPath) {
  const Url plain = Url::parse("http://example.org").value();
  EXPECT_EQ(plain.host, "example.org");
  EXPECT_EQ(plain.port, 80);
  EXPECT_EQ(plain.path, "");

  const Url full = Url::parse("HTTP://127.0.0.1:8000/a/b//").value();
  EXPECT_EQ(full.port, 8000);
  EXPECT_EQ(full.text(), "http://127.0.0.1:8000/a/b");

  EXPECT_EQ(Url::parse("https://a").value().port, 443);
  EXPECT_EQ(Url::parse("HTTPS://a:8443/x").value().text(), "https://a:8443/x");
  const Url ipv6 = Url::parse("http://[::1]:81/x").value();
  EXPECT_EQ(ipv6.host, "::1");
  EXPECT_EQ(ipv6.authority(), "[::1]:81");
}

TEST(UrlParse, RefusesWhatIsNone) {
  for (const char* text : {"", "host:80", "http://", "http://:80", "ftp://a", "http://a:0",
                           "http://a:", "http://a:65536", "http://a:8x", "http://a/?q",
                           "http://u@a", "http://[::1", "http://[::1]x", "http://a b"}) {
    const auto url = Url::parse(text);
    ASSERT_FALSE(url.has_value()) << text;
    EXPECT_EQ(url.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ErrorResponse, IsWhatVllmAnswers) {
  const auto response =
      error_response(Error(ErrorCode::kInvalidArgument, "bad \"mode\"", "query.mode"));

  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(
      response.body,
      R"({"error":{"message":"bad \"mode\"","type":"BadRequestError","param":"query.mode","code":400}})");
  const Error back = error_of_response(response);
  EXPECT_EQ(back.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(back.message(), "bad \"mode\"");
  EXPECT_TRUE(error_response(Error(ErrorCode::kOverloaded, "x")).headers.try_get("Retry-After"));
  EXPECT_NE(error_response(Error(ErrorCode::kInternal, "x")).body.find("\"param\":null"),
            std::string::npos);
}

TEST(ErrorResponse, IsUnderstoodInEveryFormPeersUse) {
  EXPECT_EQ(error_of_response(json_response(R"({"error":"paused"})", 500)).message(), "paused");
  EXPECT_EQ(error_of_response(json_response(R"({"detail":"Not Found"})", 404)).message(),
            "Not Found");
  EXPECT_EQ(error_of_response(json_response("<html>", 503)).code(), ErrorCode::kOverloaded);
  EXPECT_NE(error_of_response(json_response("<html>", 503)).message().find("<html>"),
            std::string::npos);
}

TEST(ResponseHead, CannotBeSplitByAHeaderValue) {
  Response response;
  response.headers.add("X-Name", "a\r\nSet-Cookie: b");
  response.headers.add("Bad Name", "c");
  response.headers.add("Content-Length", "7");

  EXPECT_EQ(response_head_text(response, BodyKind::kLength, 2, true),
            "HTTP/1.1 200 OK\r\nX-Name: a  Set-Cookie: b\r\nContent-Length: 2\r\n\r\n");
}

TEST(RequestHead, GivesTheSameAtEveryCut) {
  const std::string head = "POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n";
  for (std::size_t size = 0; size < head.size(); ++size) {
    EXPECT_EQ(head_size(head.substr(0, size)).value(), 0u) << size;
  }
  EXPECT_EQ(head_size(head + "hello").value(), head.size());

  const auto parsed = parse_request_head(head);

  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  EXPECT_EQ(parsed->request.method, "POST");
  EXPECT_EQ(parsed->request.target, "/a?b=c");
  EXPECT_EQ(parsed->framing.length_bytes, 5u);
  EXPECT_TRUE(parsed->keep_alive);
}

// Flips every bit of a head: whatever comes out, it is an error or a parse, never a crash.
TEST(RequestHead, SurvivesEveryBitFlip) {
  const std::string head =
      "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n";
  for (std::size_t bit = 0; bit < head.size() * 8; ++bit) {
    std::string bent = head;
    bent[bit / 8] = static_cast<char>(bent[bit / 8] ^ (1 << (bit % 8)));
    const auto size = head_size(bent);
    if (size && *size > 0) static_cast<void>(parse_request_head(bent.substr(0, *size)));
  }
}

// Feeds `text` in pieces of `step` bytes. Returns the body, or nothing for an error.
std::optional<std::string> unchunk(std::string_view text, std::size_t step) {
  ChunkScanner chunks;
  std::string body;
  while (!text.empty()) {
    std::string_view piece = text.substr(0, step);
    text.remove_prefix(piece.size());
    while (!piece.empty()) {
      if (chunks.done()) return body + "|" + std::string(piece) + std::string(text);
      const auto taken = chunks.take_framing(piece);
      if (!taken) return std::nullopt;
      piece.remove_prefix(*taken);
      const auto data = std::min<std::uint64_t>(chunks.data_bytes(), piece.size());
      body += piece.substr(0, data);
      piece.remove_prefix(data);
      if (data > 0) chunks.take_data(data);
    }
  }
  return chunks.done() ? std::optional(body) : std::nullopt;
}

TEST(ChunkScanner, FindsTheDataAtEveryFragmentation) {
  const std::string text =
      "5;name=\"v\"\r\nhello\r\n0010\r\n, chunked world!\r\n0;last\r\nTrailer: a\r\nOther: "
      "b\r\n\r\nGET";
  for (std::size_t step = 1; step < text.size(); ++step) {
    EXPECT_EQ(unchunk(text, step), "hello, chunked world!|GET") << step;
  }
}

TEST(ChunkScanner, RefusesWhatIsNoChunk) {
  for (const char* text :
       {"10000000000000000\r\n", "\r\n", "g\r\n", "-1\r\n", "+1\r\n", "0x5\r\nhello\r\n",
        "5\nhello\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhelloo\r\n", "0\r\n\n", " 5\r\n",
        "0\r\n fold\r\n\r\n", "5;a\x01\r\n"}) {
    EXPECT_EQ(unchunk(text, 1000), std::nullopt) << text;
  }
}

TEST(ChunkScanner, BoundsWhatIsNoData) {
  const std::string filler(15'000, 'e');
  const std::string one = "1;" + filler + "\r\nx\r\n";
  EXPECT_EQ(unchunk(one + "0\r\n\r\n", 1000), "x");
  EXPECT_EQ(unchunk(one + one + "0\r\n\r\n", 1000), std::nullopt);
  EXPECT_EQ(unchunk("0\r\nT: " + filler + "\r\n\r\n", 1000), "");
  EXPECT_EQ(unchunk("0\r\nT: " + filler + "\r\nU: " + filler, 1000), std::nullopt);
  EXPECT_EQ(unchunk(std::string(17'000, '0') + "1\r\n", 1000), std::nullopt);
  // Each chunk of one byte is as small as a chunk can be: that is no attack.
  std::string small, expected;
  for (int i = 0; i < 50'000; ++i) small += "1;e=f\r\nx\r\n", expected += 'x';
  EXPECT_EQ(unchunk(small + "0\r\n\r\n", 1000), expected);
}

Route route(std::string method, std::string pattern) {
  Route made;
  made.method = std::move(method);
  made.pattern = std::move(pattern);
  made.handler = [](const Request&, std::shared_ptr<Exchange>) {};
  return made;
}

std::string matched(const Router& router, std::string method, std::string target) {
  Request request;
  request.method = std::move(method);
  request.target = std::move(target);
  const auto match = router.match(request);
  if (!match) return "400";
  if (match->route == nullptr) return match->allow.empty() ? "404" : "405 " + match->allow;
  std::string text = match->route->pattern;
  for (const auto& [name, value] : request.params) text += " " + name + "=" + value;
  return text;
}

TEST(Router, PrefersLiteralSegments) {
  std::vector<Route> routes{route("GET", "/a/{x}"), route("GET", "/a/b"), route("POST", "/a/{y}"),
                            route("GET", "/{z}/b"), route("GET", "/"),    route("GET", "/a/{x}/c")};
  const Router router = Router::create(std::move(routes)).value();

  EXPECT_EQ(matched(router, "GET", "/a/b"), "/a/b");
  EXPECT_EQ(matched(router, "HEAD", "/a/b/"), "/a/b");
  EXPECT_EQ(matched(router, "POST", "/a/b"), "/a/{y} y=b");
  EXPECT_EQ(matched(router, "GET", "/a/c?q=1"), "/a/{x} x=c");
  EXPECT_EQ(matched(router, "GET", "/q/b"), "/{z}/b z=q");
  EXPECT_EQ(matched(router, "GET", "/"), "/");
  EXPECT_EQ(matched(router, "GET", "/a/%62"), "/a/b");
  EXPECT_EQ(matched(router, "GET", "/a/p%2Fq"), "/a/{x} x=p/q");
  EXPECT_EQ(matched(router, "GET", "http://host:1/a/b"), "/a/b");
  EXPECT_EQ(matched(router, "GET", "https://host:1/a/b"), "/a/b");
  EXPECT_EQ(matched(router, "PUT", "/a/{x}/c"), "405 GET, HEAD");
}

TEST(Router, DoesNotNormalizePaths) {
  std::vector<Route> routes{route("GET", "/a"), route("GET", "/a/{x}"), route("GET", "/{x}")};
  const Router router = Router::create(std::move(routes)).value();

  for (const char* target :
       {"//a", "/a//", "/x/../a", "/./a", "/a/..", "/a/%2e%2e", "/a/%2E", "a", "*", "//"}) {
    EXPECT_EQ(matched(router, "GET", target), "404") << target;
  }
  EXPECT_EQ(matched(router, "GET", "/a/%"), "400");
  EXPECT_EQ(matched(router, "GET", "/a?x=%zz"), "400");
  EXPECT_EQ(matched(router, "GET", "/a/%ff"), "400");
  EXPECT_EQ(matched(router, "GET", "/a?x=%ff"), "400");
  EXPECT_EQ(matched(router, "GET", "/a?%ff=x"), "400");
}

TEST(Router, DecodesTheQueryAndTakesTheLastOfAName) {
  const Router router = Router::create({route("GET", "/a")}).value();
  Request request;
  request.method = "GET";
  request.target = "/a/?x=1&x=2&y=a+b%2B&z&=e";

  ASSERT_TRUE(router.match(request).has_value());

  EXPECT_EQ(request.path, "/a");
  EXPECT_EQ(request.try_query("x"), "2");
  EXPECT_EQ(request.try_query("y"), "a b+");
  EXPECT_EQ(request.try_query("z"), "");
  EXPECT_FALSE(request.try_query("w").has_value());
}

TEST(Router, RefusesTablesThatAreAmbiguous) {
  EXPECT_FALSE(Router::create({route("GET", "/a/{x}"), route("GET", "/a/{y}")}).has_value());
  EXPECT_FALSE(Router::create({route("GET", "a")}).has_value());
  Route none = route("GET", "/a");
  none.handler = nullptr;
  EXPECT_FALSE(Router::create({none}).has_value());
}

}  // namespace
}  // namespace weft::http
