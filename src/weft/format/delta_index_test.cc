#include "weft/format/delta_index.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

Digest filled(unsigned value) {
  Digest digest;
  digest.bytes.fill(static_cast<std::byte>(value));
  return digest;
}

// Two packs: the second payload has no room in the first.
DeltaIndex two_packs() {
  DeltaIndex index;
  index.base = filled(1);
  index.target = filled(2);
  index.packs = {{100, filled(3)}, {kMaxDeltaPackBytes, filled(4)}};
  index.blocks = {
      {0, 1, 60, filled(5)}, {0, 7, 40, filled(6)}, {2, 0, kMaxDeltaPackBytes, filled(7)}};
  return index;
}

Result<DeltaIndex> parsed(const std::string& text) {
  return parse_delta_index(std::as_bytes(std::span(text)));
}

std::string reason(const std::string& text) {
  const auto index = parsed(text);
  return index ? "accepted" : index.error().message();
}

constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kPacksAt = 88, kBlocksAt = kPacksAt + 2 * 36;

// With these bytes at `at`, and the digest at its end made right again.
std::string changed(std::string text, std::size_t at, std::string_view bytes) {
  text.replace(at, bytes.size(), bytes);
  text.resize(text.size() - kDigestBytes);
  for (const std::byte b : digest_of(std::as_bytes(std::span(text))).bytes) {
    text += static_cast<char>(b);
  }
  return text;
}
std::string word(std::uint32_t number) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += static_cast<char>(number >> 8 * i);
  return text;
}

TEST(DeltaIndex, ReadsBackWhatWasWritten) {
  const std::string text = encode_delta_index(two_packs());
  EXPECT_EQ(text.size(), delta_index_bytes(2, 3));
  EXPECT_EQ(parsed(text).value(), two_packs());
  DeltaIndex empty;
  empty.target = filled(9);
  EXPECT_EQ(parsed(encode_delta_index(empty)).value(), empty);
}

TEST(DeltaIndex, SaysWherePayloadsLie) {
  const auto places = delta_payload_places(two_packs());
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[1].pack, 0u);
  EXPECT_EQ(places[1].offset_bytes, 60u);
  EXPECT_EQ(places[2].pack, 1u);
  EXPECT_EQ(places[2].offset_bytes, 0u);
  EXPECT_EQ(delta_payload_bytes(two_packs()), 100u + kMaxDeltaPackBytes);
}

TEST(DeltaIndex, APackIsFilledAsLongAsThereIsRoom) {
  DeltaPackCut cut;
  EXPECT_EQ(cut.packs(), 0u);
  EXPECT_EQ(cut.add(kMaxDeltaPackBytes - 1).pack, 0u);
  EXPECT_EQ(cut.add(1).offset_bytes, kMaxDeltaPackBytes - 1);
  EXPECT_EQ(cut.add(1).pack, 1u);
  EXPECT_EQ(cut.packs(), 2u);
}

TEST(DeltaIndex, RefusalsNameTheRule) {
  const std::string text = encode_delta_index(two_packs());
  EXPECT_THAT(reason(""), HasSubstr("0 bytes, expected at least 120"));
  EXPECT_THAT(reason(changed(text, 0, "x")), HasSubstr("does not begin with `weft-dix`"));
  EXPECT_THAT(reason(changed(text, 8, word(2))), HasSubstr("format version 2, expected 1"));
  EXPECT_EQ(parsed(changed(text, 8, word(2))).error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(reason(changed(text, 12, word(0xFFFFFFFF))), HasSubstr("4294967295 packs"));
  EXPECT_THAT(reason(changed(text, 16, word(0xFFFFFFFF))), HasSubstr("4294967295 blocks"));
  EXPECT_THAT(reason(changed(text, 20, word(1))), HasSubstr("the sixth word is not zero"));
  EXPECT_THAT(reason(changed(text, kPacksAt, word(99))),
              HasSubstr("pack 0 has 99 bytes, its payloads 100"));
  const std::size_t second = kBlocksAt + 44;
  EXPECT_THAT(reason(changed(text, second + 4, word(1))),
              HasSubstr("block 1 of entry 0 is out of order"));
  EXPECT_THAT(reason(changed(text, second, word(3))), HasSubstr("block 0 of entry 2 is out"));
  EXPECT_THAT(reason(changed(text, second + 8, word(0))), HasSubstr("a payload of 0 bytes"));
  EXPECT_THAT(reason(changed(text, second + 8, word(kMaxDeltaPackBytes + 1))),
              HasSubstr("expected 1 to 33554432"));
  EXPECT_THAT(reason(changed(text, second + 8, word(kMaxDeltaPackBytes))),
              HasSubstr("2 packs are not enough"));
  EXPECT_THAT(reason(text.substr(0, text.size() - 1)), HasSubstr("2 packs and 3 blocks have"));
}

TEST(DeltaIndex, AcceptsNoOtherBytes) {
  const std::string text = encode_delta_index(two_packs());
  for (std::size_t at = 0; at < text.size(); ++at) {
    EXPECT_FALSE(parsed(text.substr(0, at))) << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      EXPECT_FALSE(parsed(flipped)) << at;
    }
  }
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoul(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// docs/formats/delta_index_vectors.txt.
TEST(DeltaIndex, VectorsAreReadAndWritten) {
  const char* const root = std::getenv("WEFT_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  std::ifstream file(std::string(root) + "/docs/formats/delta_index_vectors.txt");
  ASSERT_TRUE(file);
  int vectors = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    std::string name, verdict, hex;
    ASSERT_TRUE(fields >> name >> verdict >> hex) << line;
    SCOPED_TRACE(name);
    ++vectors;
    const std::string bytes = from_hex(hex);
    const auto index = parsed(bytes);
    EXPECT_EQ(index.has_value(), verdict == "right");
    if (index) {
      EXPECT_EQ(encode_delta_index(*index), bytes);
    }
  }
  EXPECT_GT(vectors, 5);
}

}  // namespace
}  // namespace weft
