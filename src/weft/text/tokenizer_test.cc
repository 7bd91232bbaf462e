#include "weft/text/tokenizer.h"

#include <random>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<std::uint32_t>;

constexpr std::uint32_t kEnd = 259;  // <|eos|> of byte_level()

std::string utf8(std::uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// The printable character that stands for a byte. Source: bytes_to_unicode of GPT-2's encoder.py.
std::vector<std::string> byte_characters() {
  std::vector<std::string> characters(256);
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    characters[byte] = utf8(printable ? byte : next++);
  }
  return characters;
}

std::unique_ptr<Tokenizer> parse(const std::string& added, const std::string& rest) {
  return Tokenizer::parse(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" +
                          added + "]," + rest + "}")
      .value();
}

std::string special_token(std::uint32_t id, std::string_view content) {
  return fmt::format(
      R"({{"id":{},"content":"{}","single_word":false,"lstrip":false,"rstrip":false,)"
      R"("normalized":false,"special":true}})",
      id, content);
}

constexpr char kByteLevel[] =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false})";

// Ids below 256 are bytes, 256 is "he", 257 "hel".
std::unique_ptr<Tokenizer> byte_level() {
  std::string vocab = R"("he":256,"hel":257)";
  const auto characters = byte_characters();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::string escape = characters[byte] == "\"" || characters[byte] == "\\" ? "\\" : "";
    vocab += fmt::format(R"(,"{}{}":{})", escape, characters[byte], byte);
  }
  return parse(special_token(258, "<|bos|>") + "," + special_token(kEnd, "<|eos|>"),
               fmt::format(R"("normalizer":null,"pre_tokenizer":{0},"decoder":{0},)"
                           R"("post_processor":null,"model":{{"type":"BPE","byte_fallback":false,)"
                           R"("vocab":{{{1}}},"merges":["h e","he l"]}})",
                           kByteLevel, vocab));
}

// As Llama 2's: spaces are U+2581, what is not in the vocabulary falls back to bytes; ids 0 to 255
// are bytes.
std::unique_ptr<Tokenizer> byte_fallback() {
  std::string vocab =
      "\"\xe2\x96\x81\":256,\"a\":257,\"b\":258,\"\xe2\x96\x81"
      "a\":259,\"<unk>\":260,\"\xc3\xa9\":261";
  for (int byte = 0; byte < 256; ++byte) vocab += fmt::format(R"(,"<0x{:02X}>":{})", byte, byte);
  return parse(
      special_token(262, "<s>"),
      "\"pre_tokenizer\":null,\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
      "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
      "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
      "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
      "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"post_processor\":"
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>",)"
      R"("ids":[262],"tokens":["<s>"]}}},)"
      R"("model":{"type":"BPE","byte_fallback":true,"unk_token":"<unk>","fuse_unk":true,"vocab":{)" +
          vocab + "},\"merges\":[\"\xe2\x96\x81 a\"]}");
}

// One token a character, as small demonstration models have.
std::unique_ptr<Tokenizer> characters() {
  return parse(special_token(4, "<eos>"),
               R"("normalizer":null,"post_processor":null,"decoder":{"type":"Fuse"},)"
               R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"."},"behavior":"Isolated",)"
               R"("invert":false},"model":{"type":"WordLevel","unk_token":"?",)"
               R"("vocab":{"?":0,"1":1,"2":2,"+":3}})");
}

// What is pushed, piece by piece, and the rest.
std::vector<std::string> pieces(const Tokenizer& tokenizer, const Ids& ids, bool skip = true) {
  IncrementalDecoder decoder(tokenizer, skip);
  std::vector<std::string> texts;
  for (const std::uint32_t id : ids) texts.push_back(decoder.push(id).value());
  texts.push_back(decoder.finish().value());
  return texts;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

TEST(Tokenizer, EncodesWithMergesAndDecodes) {
  const auto tokenizer = byte_level();

  EXPECT_THAT(tokenizer->encode("hell<|eos|> \xc3\xa9", false).value(),
              ElementsAre(257, 'l', kEnd, ' ', 0xc3, 0xa9));
  EXPECT_EQ(tokenizer->decode(Ids{257, 'l', kEnd, 'o'}, true).value(), "hello");
  EXPECT_EQ(tokenizer->decode(Ids{257, kEnd}, false).value(), "hel<|eos|>");
  EXPECT_EQ(tokenizer->decode({}, false).value(), "");
}

TEST(Tokenizer, AddsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = byte_fallback();

  EXPECT_THAT(tokenizer->encode("a", true).value(), ElementsAre(262, 259));
  EXPECT_THAT(tokenizer->encode("a\xf0\x9f\x98\x8a", false).value(),
              ElementsAre(259, 0xf0, 0x9f, 0x98, 0x8a));
}

TEST(Tokenizer, SplitsIntoCharacters) {
  const auto tokenizer = characters();

  EXPECT_THAT(tokenizer->encode("12+x", true).value(), ElementsAre(1, 2, 3, 0));
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 2, 4}, true).value(), "1+2");
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = byte_level();

  EXPECT_EQ(tokenizer->vocab_size(), 260u);
  EXPECT_EQ(tokenizer->try_id_to_token(256), "he");
  EXPECT_EQ(tokenizer->try_id_to_token(' '), "\xc4\xa0");
  EXPECT_EQ(tokenizer->try_id_to_token(260), std::nullopt);
  EXPECT_EQ(tokenizer->try_token_to_id("<|eos|>"), kEnd);
  EXPECT_EQ(tokenizer->try_token_to_id("no such"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(kEnd));
  EXPECT_FALSE(tokenizer->is_special('a'));
}

TEST(Tokenizer, IgnoresTruncationAndPadding) {
  const auto tokenizer = Tokenizer::parse(
      R"({"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst",)"
      R"("stride":0},"padding":{"strategy":{"Fixed":8},"direction":"Right","pad_to_multiple_of":null,)"
      R"("pad_id":0,"pad_type_id":0,"pad_token":"a"},"added_tokens":[],"normalizer":null,)"
      R"("pre_tokenizer":null,"post_processor":null,"decoder":null,)"
      R"("model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})");

  EXPECT_THAT((*tokenizer)->encode("abab", false).value(), ElementsAre(0, 1, 0, 1));
}

TEST(Tokenizer, WhatIsNoTokenizerIsAnErrorWithTheReason) {
  for (const char* json : {"", "{}", "[1", "{\"model\":{\"type\":\"Unknown\"}}", "\xff"}) {
    EXPECT_EQ(Tokenizer::parse(json).error().code(), ErrorCode::kInvalidArgument) << json;
  }
  EXPECT_EQ(byte_level()->encode("\xff", false).error().message(),
            "cannot encode the text: not UTF-8 at byte 0");
}

// Expected texts are those of Python's bytes.decode("utf-8", "replace").
TEST(Tokenizer, BytesThatAreNoCharacterAreReplaced) {
  const auto tokenizer = byte_level();

  EXPECT_EQ(tokenizer->decode(Ids{244, 144, 128, 128}, true).value(),
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(tokenizer->decode(Ids{192, 128}, true).value(), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(tokenizer->decode(Ids{237, 160, 128}, true).value(),
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(IncrementalDecoder, HoldsBackHalfACharacter) {
  const auto tokenizer = byte_level();

  EXPECT_THAT(pieces(*tokenizer, {'a', 0xf0, 0x9f, 0x98, 0x8a, 'b', kEnd}),
              ElementsAre("a", "", "", "", "\xf0\x9f\x98\x8a", "b", "", ""));
}

TEST(IncrementalDecoder, ReplacesABadByteOnceItIsKnownToBeBad) {
  const auto tokenizer = byte_level();

  EXPECT_THAT(pieces(*tokenizer, {'x', 0x85, 'y'}), ElementsAre("x", "", "\xef\xbf\xbdy", ""));
}

TEST(IncrementalDecoder, GivesOutACutCharacterAtTheEnd) {
  const auto tokenizer = byte_level();

  EXPECT_THAT(pieces(*tokenizer, {'a', 0xf0, 0x9f}), ElementsAre("a", "", "", "\xef\xbf\xbd"));
}

TEST(IncrementalDecoder, ShowsSpecialTokensWhenAsked) {
  const auto tokenizer = byte_level();

  EXPECT_THAT(pieces(*tokenizer, {'a', kEnd}, false), ElementsAre("a", "<|eos|>", ""));
}

TEST(IncrementalDecoder, KeepsTheSpacesThatOnlyTheStartLoses) {
  const auto tokenizer = byte_fallback();

  EXPECT_THAT(pieces(*tokenizer, {259, 259, 256, 257}), ElementsAre("a", " a", " ", "a", ""));
  EXPECT_THAT(pieces(*tokenizer, {0xc3, 0xa9, 257}), ElementsAre("", "",
                                                                 "\xc3\xa9"
                                                                 "a",
                                                                 ""));
}

TEST(IncrementalDecoder, AlwaysJoinsToTheWholeText) {
  std::minstd_rand random(17);
  const auto below = [&random](std::uint32_t n) {
    return static_cast<std::uint32_t>(random() % n);
  };
  for (const auto& tokenizer : {byte_level(), byte_fallback(), characters()}) {
    for (int round = 0; round < 300; ++round) {
      // Few different ids, so that runs and whole characters are common; some outside the
      // vocabulary.
      const Ids few = {0xf0, 0x9f, 0x98, 0x8a, 0xc3, 0xa9, 0x85, 'a', below(264), below(264)};
      Ids ids(below(60));
      for (std::uint32_t& id : ids) id = few[below(10)];
      const bool skip = round % 2 == 0;
      EXPECT_EQ(joined(pieces(*tokenizer, ids, skip)), tokenizer->decode(ids, skip).value());
    }
  }
}

// In time that grows with the square of the length this would take minutes.
TEST(IncrementalDecoder, LongRunsAreNoBurden) {
  const auto tokenizer = byte_level();
  for (const Ids& ids : {Ids(100'000, 'a'), Ids(100'000, 0x85), Ids(100'000, kEnd)}) {
    EXPECT_EQ(joined(pieces(*tokenizer, ids)), tokenizer->decode(ids, true).value());
  }
  const auto fallback = byte_fallback();
  const Ids bytes(100'000, 0x85);
  EXPECT_EQ(joined(pieces(*fallback, bytes)), fallback->decode(bytes, true).value());
}

}  // namespace
}  // namespace weft
