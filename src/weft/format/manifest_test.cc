#include "weft/format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

Manifest small_manifest() {
  return {{{{"a\"", DType::kBF16, {2, 3}}, digest_of({})}, {{"b", DType::kF32, {}}, Digest{}}},
          {{"config.json", 17, Digest{}}}};
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

std::string reason(std::string_view text) {
  const auto parsed = parse_manifest(text);
  return parsed ? "accepted" : parsed.error().message();
}

TEST(Manifest, IsCanonicalJson) {
  const std::string zeros = "blake3:" + std::string(64, '0');

  EXPECT_EQ(
      manifest_json(small_manifest()),
      "{\"files\":[{\"digest\":\"" + zeros +
          "\",\"name\":\"config.json\",\"size\":17}],\"format\":\"weft-manifest-1\",\"tensors\":["
          "{\"digest\":\"" +
          digest_text(digest_of({})) +
          "\",\"dtype\":\"BF16\",\"name\":\"a\\\"\",\"shape\":[2,3]},{\"digest\":\"" + zeros +
          "\",\"dtype\":\"F32\",\"name\":\"b\",\"shape\":[]}]}");
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const std::string text = manifest_json(small_manifest());
  const Manifest parsed = parse_manifest(text).value();

  EXPECT_EQ(parsed.tensors[0].spec, small_manifest().tensors[0].spec);
  EXPECT_EQ(parsed.tensors[0].digest, digest_of({}));
  EXPECT_EQ(parsed.files[0].size_bytes, 17u);
  EXPECT_EQ(manifest_json(parsed), text);
  EXPECT_EQ(manifest_id(parsed), manifest_id(small_manifest()));
  EXPECT_EQ(parse_manifest(manifest_json({})).value().tensors.size(), 0u);
}

TEST(Manifest, RefusalsNameWhatDiffers) {
  const std::string text = manifest_json(small_manifest());

  EXPECT_THAT(reason(replaced(text, ":17", ": 17")), HasSubstr("differs from RFC 8785 at byte"));
  EXPECT_THAT(reason(replaced(text, "\"name\":\"b\"", "\"extra\":1,\"name\":\"b\"")),
              HasSubstr("differs from RFC 8785"));
  EXPECT_THAT(reason(replaced(text, "\"b\"", "\"a\\\"\"")), HasSubstr("order of the names"));
  EXPECT_THAT(reason(replaced(text, "config.json", "..")), HasSubstr("`..` is no plain file name"));
  EXPECT_THAT(reason(replaced(text, "config.json", "../x")), HasSubstr("`../x`"));
  EXPECT_THAT(reason(replaced(text, "BF16", "bf16")), HasSubstr("dtype `bf16`"));
  EXPECT_THAT(reason(replaced(text, "blake3:0", "sha256:0")), HasSubstr("is no digest"));
  EXPECT_THAT(reason(replaced(text, "[2,3]", "[2,-3]")), HasSubstr("shape: is no integer"));
  EXPECT_THAT(reason(replaced(text, "[2,3]", "[9007199254740992]")), HasSubstr("is no integer"));
  EXPECT_THAT(reason(replaced(text, "manifest-1", "manifest-2")), HasSubstr("`weft-manifest-2`"));
  EXPECT_THAT(reason(replaced(text, "\"b\"", "\"__metadata__\"")), HasSubstr("`__metadata__`"));
  std::string ones = "[1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_THAT(reason(replaced(text, "[2,3]", ones + "]")), HasSubstr("over 64 dimensions"));
  EXPECT_THAT(reason("[]"), HasSubstr("format: is missing"));
}

TEST(Manifest, AcceptsNoOtherBytes) {
  const std::string text = manifest_json(small_manifest());
  for (std::size_t at = 0; at < text.size(); ++at) {
    EXPECT_FALSE(parse_manifest(text.substr(0, at)).has_value()) << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const auto parsed = parse_manifest(flipped);
      if (!parsed) continue;
      EXPECT_EQ(manifest_json(*parsed), flipped);
    }
  }
}

}  // namespace
}  // namespace weft
