#include "weft/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string golden() {
  return blocking_read_file(source_dir() / "tests/golden/safetensors/four_tensors.safetensors")
      .value();
}

std::uint64_t prefix_of(std::string_view file) {
  return parse_safetensors_prefix(std::as_bytes(std::span(file)).first<8>()).value();
}

std::string reason(std::string_view header) {
  const auto parsed = parse_safetensors_header(header);
  return parsed ? "accepted" : parsed.error().message();
}

TEST(SafetensorsPrefix, HoldsTheHeadersLengthWithinTheCap) {
  const auto parse = [](std::string_view bytes) {
    return parse_safetensors_prefix(std::as_bytes(std::span(bytes)).first<8>());
  };
  using namespace std::string_view_literals;

  EXPECT_EQ(parse("\x00\xe1\xf5\x05\0\0\0\0"sv).value(), 100'000'000u);
  EXPECT_EQ(parse("\x01\xe1\xf5\x05\0\0\0\0"sv).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(parse("\x02\0\0\0\0\0\0\0"sv).value(), 2u);
  EXPECT_FALSE(parse("\x01\0\0\0\0\0\0\0"sv).has_value());
  EXPECT_FALSE(parse("\xff\xff\xff\xff\xff\xff\xff\xff"sv).has_value());
}

TEST(SafetensorsHeader, ReadsAFileThatPythonWrote) {
  const std::string file = golden();
  const auto header = parse_safetensors_header(file.substr(8, prefix_of(file))).value();

  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].spec, (TensorSpec{"scalar", DType::kI64, {}}));
  EXPECT_EQ(header.tensors[1].spec, (TensorSpec{"a.bias", DType::kF32, {2}}));
  EXPECT_EQ(header.tensors[3].spec, (TensorSpec{"empty", DType::kF16, {0, 4}}));
  EXPECT_EQ(header.tensors[2].spec, (TensorSpec{"b.weight", DType::kBF16, {2, 3}}));
  EXPECT_EQ(header.tensors[2].begin_bytes, 16u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(8 + prefix_of(file) + header.data_bytes, file.size());
}

TEST(SafetensorsHeader, WrittenOnesReadBack) {
  const std::vector<TensorSpec> specs = {
      {"z\"\n", DType::kBF16, {3}}, {"a", DType::kF64, {2, 0}}, {"m", DType::kF32, {}}};
  const std::string bytes = make_safetensors_header(specs, {{"format", "pt"}}).value();
  const auto header = parse_safetensors_header(bytes.substr(8)).value();

  EXPECT_EQ(prefix_of(bytes) + 8, bytes.size());
  EXPECT_EQ(bytes.size() % 8, 0u);
  ASSERT_EQ(header.tensors.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(header.tensors[i].spec, specs[i]);
  EXPECT_EQ(header.data_bytes, 10u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, IsNotWrittenWithANameThatIsTaken) {
  const TensorSpec a{"a", DType::kU8, {1}};
  const TensorSpec metadata{"__metadata__", DType::kU8, {1}};

  EXPECT_FALSE(make_safetensors_header(std::vector{a, a}, {}).has_value());
  EXPECT_FALSE(make_safetensors_header(std::vector{metadata}, {}).has_value());
  EXPECT_TRUE(check_safetensors_tensor({"a", DType::kU8, Shape(64, 1)}));
  EXPECT_FALSE(check_safetensors_tensor({"a", DType::kU8, Shape(65, 1)}));
}

TEST(SafetensorsHeader, RefusalsNameTheTensorAndTheReason) {
  EXPECT_THAT(reason(R"({"w":{"dtype":"Q4_K","shape":[4],"data_offsets":[0,4]}})"),
              HasSubstr("tensor `w`: `dtype` is `Q4_K`"));
  EXPECT_THAT(reason(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})"),
              HasSubstr("tensor `w`: [2] of F32 are 8 bytes, its offsets hold 4"));
  EXPECT_THAT(reason(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              HasSubstr("tensor `w`: begins at byte 4 of the data, after a hole from byte 0"));
  EXPECT_THAT(reason(R"({"w":{"dtype":"U8","shape":[],"shape":[],"data_offsets":[0,1]}})"),
              HasSubstr("tensor `w`: `shape` is given twice"));
  EXPECT_THAT(reason(R"({"w":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}})"),
              HasSubstr("a negative number"));
  EXPECT_THAT(reason(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})"),
              HasSubstr("a number where none belongs"));
  EXPECT_THAT(reason(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("twice"));
  EXPECT_THAT(reason(R"({"__metadata__":{"k":"1","k":"2"}})"), HasSubstr("`k` is given twice"));
  EXPECT_THAT(reason(R"({}x)"), HasSubstr("not JSON at byte 2"));
}

TEST(SafetensorsHeader, DeepOrWideNonsenseIsRefusedAtOnce) {
  std::string wide = R"({"w":{"dtype":"U8","shape":[1)";
  for (int i = 0; i < 1'000'000; ++i) wide += ",1";

  EXPECT_THAT(reason("{\"w\":" + std::string(1'000'000, '[')), HasSubstr("an array where none"));
  EXPECT_THAT(reason("{\"w\":{\"x\":" + std::string(1'000'000, '{')), HasSubstr("an object where"));
  EXPECT_THAT(reason(wide), HasSubstr("over 64 dimensions"));
}

TEST(SafetensorsHeader, CutAnywhereIsRefused) {
  const std::string file = golden();
  const std::string header = file.substr(8, prefix_of(file));
  const std::size_t closing = header.rfind('}');
  for (std::size_t size = 0; size <= closing; ++size) {
    EXPECT_FALSE(parse_safetensors_header(header.substr(0, size)).has_value()) << size;
  }
}

TEST(SafetensorsHeader, AFlippedBitIsRefusedOrChangesNoPlace) {
  const std::string file = golden();
  const std::string header = file.substr(8, prefix_of(file));
  for (std::size_t bit = 0; bit < header.size() * 8; ++bit) {
    std::string flipped = header;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto parsed = parse_safetensors_header(flipped);
    if (!parsed) continue;
    // What is left are names, the metadata's text, and dtypes of the same size.
    EXPECT_EQ(parsed->data_bytes, 28u) << flipped;
    for (const SafetensorsEntry& tensor : parsed->tensors) {
      EXPECT_EQ(tensor_size_bytes(tensor.spec).value(), tensor.end_bytes - tensor.begin_bytes);
    }
  }
}

}  // namespace
}  // namespace weft
