#include "weft/checkpoint/checkpoint_files.h"

#include <fstream>
#include <map>
#include <tuple>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/checkpoint/model_files.h"
#include "weft/testing/safetensors_file.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr char kIndex[] = "model.safetensors.index.json";

TestTensor tensor(std::string name, int fill) {
  return filled_tensor(std::move(name), DType::kU8, {2}, static_cast<std::byte>(fill));
}

// The first byte of each tensor, by name.
std::map<std::string, int> first_bytes(const CheckpointFiles& checkpoint) {
  std::map<std::string, int> firsts;
  for (const auto& entry : checkpoint.tensors()) {
    std::vector<std::byte> bytes(tensor_size_bytes(entry.spec).value());
    checkpoint.blocking_read(entry, bytes).value();
    firsts[entry.spec.name] = std::to_integer<int>(bytes.at(0));
  }
  return firsts;
}

void write_index(const TemporaryDir& folder, const std::string& weight_map) {
  blocking_write_file(folder / kIndex,
                      R"({"metadata":{"total_size":999},"weight_map":{)" + weight_map + "}}")
      .value();
}

// Tensors a (1) and b (2) in two shards, with an index.
void write_shards(const TemporaryDir& folder) {
  blocking_write_safetensors(folder / "one.safetensors", {tensor("a", 1)});
  blocking_write_safetensors(folder / "two.safetensors", {tensor("b", 2)});
  write_index(folder, R"("a":"one.safetensors","b":"two.safetensors")");
}

using Firsts = std::map<std::string, int>;

TEST(CheckpointFiles, ReadsShardsByTheirIndexAndIgnoresTotalSize) {
  const TemporaryDir folder;
  write_shards(folder);

  const auto checkpoint = CheckpointFiles::blocking_open(folder.path()).value();

  EXPECT_EQ(first_bytes(checkpoint), (Firsts{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(checkpoint.path_of(checkpoint.tensors()[1]), folder / "two.safetensors");
}

TEST(CheckpointFiles, FollowsTheIndexAlone) {
  const TemporaryDir folder;
  write_shards(folder);
  blocking_write_safetensors(folder / "model.safetensors", {tensor("a", 7), tensor("b", 7)});
  blocking_write_safetensors(folder / "consolidated.safetensors", {tensor("a", 8)});
  blocking_write_safetensors(folder / "two.safetensors", {tensor("a", 9), tensor("b", 2)});

  const auto checkpoint = CheckpointFiles::blocking_open(folder.path()).value();

  EXPECT_EQ(first_bytes(checkpoint), (Firsts{{"a", 1}, {"b", 2}}));
}

TEST(CheckpointFiles, AShardThatIsAbsentIsNamed) {
  const TemporaryDir folder;
  write_shards(folder);
  std::filesystem::remove(folder / "two.safetensors");

  const auto checkpoint = CheckpointFiles::blocking_open(folder.path());

  EXPECT_EQ(checkpoint.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(checkpoint.error().message(), HasSubstr("two.safetensors"));
}

TEST(CheckpointFiles, ATensorThatItsFileLacksIsNamed) {
  const TemporaryDir folder;
  write_shards(folder);
  write_index(folder, R"("a":"one.safetensors","c":"two.safetensors")");

  const auto checkpoint = CheckpointFiles::blocking_open(folder.path());

  EXPECT_EQ(checkpoint.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(checkpoint.error().message(),
              HasSubstr("tensor `c` is not in " + (folder / "two.safetensors").string()));
}

TEST(CheckpointFiles, AnIndexMayNotPointOutsideTheFolder) {
  const TemporaryDir folder;
  write_shards(folder);
  for (const char* file :
       {R"("../x.safetensors")", R"("/etc/x.safetensors")", R"("s/../../x")", R"("")", "1"}) {
    write_index(folder, std::string(R"("a":)") + file);
    const auto checkpoint = CheckpointFiles::blocking_open(folder.path());
    EXPECT_EQ(checkpoint.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(checkpoint.error().message(), HasSubstr("not in the folder")) << file;
  }
}

TEST(CheckpointFiles, AnIndexThatIsNoIndexIsNamed) {
  const TemporaryDir folder;
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":"x","a":"y"}})"}) {
    blocking_write_file(folder / kIndex, text).value();
    const auto checkpoint = CheckpointFiles::blocking_open(folder.path());
    EXPECT_EQ(checkpoint.error().code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(checkpoint.error().message(), HasSubstr(kIndex));
  }
}

TEST(CheckpointFiles, WithoutAnIndexOneFileIsEnoughAndTwoAreTooMany) {
  const TemporaryDir folder;
  blocking_write_safetensors(folder / "weights.safetensors", {tensor("b", 2), tensor("a", 1)});

  const auto lone = CheckpointFiles::blocking_open(folder.path()).value();
  const auto file = CheckpointFiles::blocking_open(folder / "weights.safetensors").value();
  blocking_write_safetensors(folder / "more.safetensors", {tensor("c", 3)});
  const auto two = CheckpointFiles::blocking_open(folder.path());
  blocking_write_safetensors(folder / "model.safetensors", {tensor("m", 4)});
  const auto named = CheckpointFiles::blocking_open(folder.path()).value();

  EXPECT_EQ(first_bytes(lone), (Firsts{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(first_bytes(file), first_bytes(lone));
  EXPECT_EQ(two.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(first_bytes(named), (Firsts{{"m", 4}}));
}

TEST(CheckpointFiles, PickledWeightsAreRefusedByName) {
  const TemporaryDir folder;
  blocking_write_file(folder / "pytorch_model.bin", "x").value();

  const auto checkpoint = CheckpointFiles::blocking_open(folder.path());

  EXPECT_EQ(checkpoint.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(checkpoint.error().message(), HasSubstr("pytorch_model.bin"));
}

TEST(CheckpointFiles, NothingThereIsNotFound) {
  const TemporaryDir folder;

  EXPECT_EQ(CheckpointFiles::blocking_open(folder.path()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(CheckpointFiles::blocking_open(folder / "x").error().code(), ErrorCode::kNotFound);
}

TEST(CheckpointFiles, AFileThatShrinksAfterwardsIsAnError) {
  const TemporaryDir folder;
  blocking_write_safetensors(folder / "model.safetensors", {tensor("a", 1)});
  const auto checkpoint = CheckpointFiles::blocking_open(folder.path()).value();
  std::filesystem::resize_file(folder / "model.safetensors", 20);
  std::vector<std::byte> bytes(2);

  const auto read = checkpoint.blocking_read(checkpoint.tensors()[0], bytes);

  EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
}

// Sparse files, past what one read() gives and past what 32 bits count.
TEST(CheckpointFiles, ATensorMayBeLargerThanFourGibibytes) {
  const TemporaryDir folder;
  for (const std::uint64_t rows : {151'936u, 262'144u}) {
    const TensorSpec spec{"model.embed_tokens.weight", DType::kBF16, {rows, 8'448}};
    const std::uint64_t size_bytes = tensor_size_bytes(spec).value();
    const std::string header =
        fmt::format(R"({{"{}":{{"dtype":"BF16","shape":[{},8448],"data_offsets":[0,{}]}}}})",
                    spec.name, rows, size_bytes);
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    const auto path = folder / "model.safetensors";
    blocking_write_file(path, file + header).value();
    std::filesystem::resize_file(path, 8 + header.size() + size_bytes - 2);
    std::ofstream(path, std::ios::app | std::ios::binary) << "\x80\x3f";

    const auto checkpoint = CheckpointFiles::blocking_open(path).value();
    const auto& tensor = checkpoint.tensors().at(0);
    std::vector<std::byte> first(2), last(2);
    checkpoint.blocking_read_at(tensor, 0, first).value();
    checkpoint.blocking_read_at(tensor, size_bytes - 2, last).value();

    EXPECT_EQ(tensor.spec, spec);
    EXPECT_EQ(first, std::vector<std::byte>(2));
    EXPECT_EQ(last, (std::vector<std::byte>{std::byte{0x80}, std::byte{0x3f}}));
  }
}

// tests/fixtures/bad_safetensors.py makes these files; the CTest fixture runs it.
std::filesystem::path odd_files() {
  return binary_dir() / "fixtures/bad";
}

TEST(OddFiles, GoodOnesLoadExactly) {
  using Expected =
      std::vector<std::tuple<TensorSpec, std::uint64_t>>;  // with its place in the data
  const TensorSpec a2{"a", DType::kF32, {2}};
  const TensorSpec a1{"a", DType::kF32, {1}};
  const TensorSpec b1{"b", DType::kF32, {1}};
  const std::map<std::string, Expected> expected = {
      {"ok_minimal", {{a2, 0}}},
      {"ok_space_padded", {{a2, 0}}},
      {"ok_ws_after_any", {}},
      {"ok_empty_object", {}},
      {"ok_metadata_only", {}},
      {"ok_zero_dim_0", {{{"a", DType::kI32, {2, 0}}, 0}}},
      {"ok_scalar", {{{"a", DType::kF32, {}}, 0}}},
      {"ok_empty_between", {{a1, 0}, {b1, 4}, {{"e", DType::kF32, {0}}, 4}}},
      {"ok_header_order_not_data_order", {{a1, 0}, {b1, 4}}},
      {"ok_unaligned_f32", {{{"a", DType::kBF16, {3}}, 0}, {b1, 6}}},
      {"ok_escaped_name", {{{"a\"b\\", DType::kU8, {1}}, 0}}},
  };
  for (const auto& [name, tensors] : expected) {
    const auto path = odd_files() / (name + ".safetensors");
    const auto checkpoint = CheckpointFiles::blocking_open(path).value();
    std::uint64_t data_bytes = 0;
    for (const auto& entry : checkpoint.tensors()) {
      data_bytes += tensor_size_bytes(entry.spec).value();
      std::vector<std::byte> bytes(tensor_size_bytes(entry.spec).value(), std::byte{1});
      checkpoint.blocking_read(entry, bytes).value();
      EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size()));
    }
    const std::uint64_t data_offset_bytes = std::filesystem::file_size(path) - data_bytes;
    Expected found;
    for (const auto& entry : checkpoint.tensors()) {
      found.emplace_back(entry.spec, entry.offset_bytes - data_offset_bytes);
    }
    EXPECT_EQ(found, tensors) << name;
  }
}

TEST(OddFiles, BadOnesAreRefusedWithTheFileAndTheReason) {
  int good = 0;
  int bad = 0;
  for (const auto& file : std::filesystem::directory_iterator(odd_files())) {
    const std::string name = file.path().filename();
    if (name.starts_with("ok_")) ++good;
    if (!name.starts_with("bad_")) continue;
    ++bad;
    const auto checkpoint = CheckpointFiles::blocking_open(file.path());
    ASSERT_FALSE(checkpoint.has_value()) << name;
    EXPECT_EQ(checkpoint.error().code(), ErrorCode::kCorrupt) << checkpoint.error().message();
    EXPECT_THAT(checkpoint.error().message(), HasSubstr(name));
    EXPECT_LT(checkpoint.error().message().size(), 400u) << name;
  }
  EXPECT_EQ(good, 11);
  EXPECT_EQ(bad, 39);
}

TEST(ModelFiles, AreThoseOfThisNameAndNoOthers) {
  const TemporaryDir dir;
  for (const char* const name :
       {"config.json", "tokenizer.json", "README.md", "model.safetensors"}) {
    blocking_write_file(dir / name, std::string_view(name)).value();
  }
  EXPECT_EQ(blocking_read_model_files(dir.path()).value(),
            (ModelFiles{{"config.json", "config.json"}, {"tokenizer.json", "tokenizer.json"}}));
  EXPECT_FALSE(is_model_file("../config.json"));
  EXPECT_FALSE(is_model_file(""));
}

}  // namespace
}  // namespace weft
