#include "weft/model/load.h"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>

#include "weft/base/file.h"
#include "weft/testing/safetensors_file.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kConfig = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 10,
  "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
  "max_position_embeddings": 32, "eos_token_id": 2)";

// A folder with a small Llama whose bytes are all 0x3c: every weight is the same number.
class ModelFolder {
 public:
  explicit ModelFolder(bool tied = false, DType dtype = DType::kBF16) {
    write("config.json", std::string(kConfig) + (tied ? R"(, "tie_word_embeddings": true})" : "}"));
    const auto config = ModelConfig::parse(blocking_read_file(path() / "config.json").value());
    for (const TensorSpec& spec : expected_tensors(config.value())) {
      tensors.push_back(filled_tensor(spec.name, dtype, spec.shape, std::byte{0x3c}));
    }
  }

  const std::filesystem::path& path() const { return dir_.path(); }
  void write(std::string_view name, std::string_view text) {
    blocking_write_file(dir_ / name, text).value();
  }
  TestTensor& tensor(std::string_view name) {
    return *std::ranges::find_if(tensors, [&](const auto& t) { return t.spec.name == name; });
  }
  Result<Checkpoint> load(std::optional<DType> dtype = std::nullopt) {
    blocking_write_safetensors(dir_ / "model.safetensors", tensors);
    return blocking_load_checkpoint(path(), dtype);
  }
  std::string load_error() { return load().error().message(); }

  std::vector<TestTensor> tensors;

 private:
  TemporaryDir dir_;
};

TEST(LoadCheckpoint, ReadsOneFileOrShards) {
  for (const char* const name : {"llama", "qwen2", "qwen3", "qwen3_bf16"}) {
    const auto checkpoint =
        blocking_load_checkpoint(source_dir() / "tests/golden/models" / name, std::nullopt);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    EXPECT_FALSE(checkpoint->converted);
    EXPECT_EQ(checkpoint->layout->tensors().size(), expected_tensors(checkpoint->config).size());
    EXPECT_EQ(checkpoint->eos_token_ids, std::vector<std::uint32_t>{2});
  }
}

TEST(LoadCheckpoint, KeepsTheBytesAsStored) {
  ModelFolder folder;
  const auto checkpoint = folder.load().value();
  const auto index = checkpoint.layout->try_find("model.norm.weight").value();
  EXPECT_TRUE(std::ranges::equal(checkpoint.weights->tensor(index),
                                 folder.tensor("model.norm.weight").data));
}

TEST(LoadCheckpoint, ConvertsWhereAskedAndSaysSo) {
  ModelFolder folder(false, DType::kF32);
  // Ties go to the even neighbour.
  const std::uint32_t bits[2] = {0x3F808000, 0x3F818000};
  std::memcpy(folder.tensor("model.norm.weight").data.data(), bits, sizeof(bits));
  const auto checkpoint = folder.load(DType::kBF16).value();
  EXPECT_TRUE(checkpoint.converted);
  const auto index = checkpoint.layout->try_find("model.norm.weight").value();
  EXPECT_EQ(checkpoint.layout->tensors()[index].dtype, DType::kBF16);
  std::uint16_t rounded[2];
  std::memcpy(rounded, checkpoint.weights->tensor(index).data(), sizeof(rounded));
  EXPECT_EQ(rounded[0], 0x3F80);
  EXPECT_EQ(rounded[1], 0x3F82);
  EXPECT_FALSE(folder.load(DType::kF32)->converted);
}

TEST(LoadCheckpoint, ServesDoublesAsFloats) {
  ModelFolder folder(false, DType::kF64);
  const auto checkpoint = folder.load().value();
  EXPECT_TRUE(checkpoint.converted);
  EXPECT_EQ(checkpoint.layout->tensors().front().dtype, DType::kF32);
}

TEST(LoadCheckpoint, ATiedHeadIsDroppedIfEqualAndRefusedIfNot) {
  ModelFolder folder(true);
  EXPECT_FALSE(folder.load()->layout->try_find("lm_head.weight").has_value());
  folder.tensors.push_back(filled_tensor("lm_head.weight", DType::kBF16, {10, 8}, std::byte{0x3c}));
  EXPECT_FALSE(folder.load()->layout->try_find("lm_head.weight").has_value());
  folder.tensors.back().data.back() = std::byte{0x3d};
  EXPECT_THAT(folder.load_error(), AllOf(HasSubstr("model.safetensors"),
                                         HasSubstr("lm_head.weight"), HasSubstr("ties")));
}

TEST(LoadCheckpoint, AnUntiedModelNeedsItsHead) {
  ModelFolder folder;
  folder.tensors.pop_back();
  EXPECT_THAT(folder.load_error(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("missing")));
}

TEST(LoadCheckpoint, NamesFileTensorAndWhatWasExpected) {
  ModelFolder folder;
  folder.tensor("model.norm.weight") =
      filled_tensor("model.norm.weight", DType::kBF16, {1, 8}, std::byte{0});
  EXPECT_THAT(folder.load_error(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("model.norm.weight"),
                    HasSubstr("expected shape [8], got [1, 8]")));

  ModelFolder integers;
  integers.tensor("model.norm.weight") =
      filled_tensor("model.norm.weight", DType::kI32, {8}, std::byte{0});
  EXPECT_THAT(integers.load_error(), HasSubstr("got I32"));

  ModelFolder misspelt;
  misspelt.tensor("model.norm.weight").spec.name = "model.norm.wieght";
  EXPECT_THAT(misspelt.load_error(), AllOf(HasSubstr("model.norm.wieght: unknown"),
                                           HasSubstr("model.norm.weight: missing")));
}

TEST(LoadCheckpoint, DropsTheBufferOfOldLlamas) {
  ModelFolder folder;
  folder.tensors.push_back(filled_tensor("model.layers.0.self_attn.rotary_emb.inv_freq",
                                         DType::kF32, {2}, std::byte{0}));
  EXPECT_TRUE(folder.load().has_value());
}

TEST(LoadCheckpoint, ReadsTheSmallFiles) {
  ModelFolder folder;
  folder.write("tokenizer.json", "{}");
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
    "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  folder.write("generation_config.json", R"({"temperature": 0.1, "eos_token_id": [3, 4]})");
  auto checkpoint = folder.load().value();
  EXPECT_EQ(checkpoint.tokenizer_json, "{}");
  EXPECT_EQ(checkpoint.bos_token, "<s>");
  EXPECT_EQ(checkpoint.eos_token, "</s>");
  EXPECT_EQ(checkpoint.chat_template, "d");
  EXPECT_EQ(checkpoint.eos_token_ids, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(checkpoint.config.eos_token_ids, checkpoint.eos_token_ids);

  folder.write("chat_template.jinja", "file wins");
  EXPECT_EQ(folder.load()->chat_template, "file wins");
  folder.write("tokenizer_config.json", "{");
  EXPECT_THAT(folder.load_error(), HasSubstr("tokenizer_config.json"));
}

TEST(LoadCheckpoint, RefusesAFolderThatIsNoModel) {
  const TemporaryDir empty;
  EXPECT_EQ(blocking_load_checkpoint(empty.path(), std::nullopt).error().code(),
            ErrorCode::kNotFound);
  EXPECT_EQ(blocking_load_checkpoint(empty / "absent", std::nullopt).error().code(),
            ErrorCode::kNotFound);
  ModelFolder adapter;
  adapter.write("adapter_config.json", "{}");
  EXPECT_THAT(adapter.load_error(), HasSubstr("adapter_config.json"));
  ModelFolder quantised;
  quantised.write("config.json", std::string(kConfig) + R"(, "quantization_config": {"bits": 4}})");
  EXPECT_THAT(quantised.load_error(),
              AllOf(HasSubstr("config.json"), HasSubstr("quantization_config")));
}

TEST(CheckTensors, TellsTenNamesAndThenACount) {
  ModelFolder folder;
  const auto checkpoint = folder.load().value();
  std::vector<TensorSpec> offered(checkpoint.layout->tensors());
  EXPECT_TRUE(check_tensors(*checkpoint.layout, offered, false).has_value());
  for (auto& spec : offered) spec.dtype = DType::kF16;
  EXPECT_TRUE(check_tensors(*checkpoint.layout, offered, false).has_value());

  offered.push_back({"lm_head.weight", DType::kF16, {10, 8}});
  EXPECT_THAT(check_tensors(*checkpoint.layout, offered, false).error().message(),
              HasSubstr("given twice"));
  EXPECT_THAT(check_tensors(*checkpoint.layout, {}, false).error().message(),
              AllOf(HasSubstr("lm_head.weight: missing"), HasSubstr("and 2 more"),
                    Not(HasSubstr("self_attn.v_proj"))));
}

TEST(CheckTensors, AllowsARedundantHeadOfTheRightShapeOnlyWhereTied) {
  ModelFolder folder(true);
  const auto checkpoint = folder.load().value();
  std::vector<TensorSpec> offered(checkpoint.layout->tensors());
  offered.push_back({"lm_head.weight", DType::kBF16, {10, 8}});
  EXPECT_TRUE(check_tensors(*checkpoint.layout, offered, true).has_value());
  EXPECT_FALSE(check_tensors(*checkpoint.layout, offered, false).has_value());
  offered.back().shape = {8, 10};
  EXPECT_FALSE(check_tensors(*checkpoint.layout, offered, true).has_value());
}

}  // namespace
}  // namespace weft
