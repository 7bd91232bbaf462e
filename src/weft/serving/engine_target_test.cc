// What of a version beside its weights is taken, and what is refused.

#include "weft/serving/engine_target.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/serving/scripted_engine_test.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

constexpr std::string_view kConfig = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 10,
  "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
  "max_position_embeddings": 32, "eos_token_id": 2)";

std::string config_with(std::string_view more) {
  return std::string(kConfig) + std::string(more) + "}";
}

class EngineTargetTest : public testing::Test {
 protected:
  EngineTargetTest() { engine_.set_config(ModelConfig::parse(config_with("")).value()); }

  Result<void> blocking_commit(std::optional<ModelFiles> files) {
    WeightTarget::Takeover takeover;
    takeover.version = {"blake3:two", "two", false};
    if (files) takeover.files = std::make_shared<const ModelFiles>(*std::move(files));
    return blocking_commit(takeover);
  }
  Result<void> blocking_commit(const WeightTarget::Takeover& takeover) {
    std::optional<Result<WeightTarget::Committed>> result;
    target_.commit(nullptr, takeover, [&](auto committed) { result = std::move(committed); });
    if (!*result) return result->error();
    return {};
  }

  ScriptedEngine engine_;
  CurrentModel model_{ServedModel()};
  EngineTarget target_{engine_, model_, {{"config.json", config_with("")}}};
};

TEST_F(EngineTargetTest, AConfigThatChangesTheMathsIsRefusedByKey) {
  EXPECT_TRUE(target_.check_files({{"config.json", config_with(R"(, "use_cache": true)")}}));
  const auto other = target_.check_files({{"config.json", config_with(R"(, "rope_theta": 5.0)")}});
  EXPECT_EQ(other.error().code(), ErrorCode::kConflict);
  EXPECT_NE(other.error().message().find("`rope_theta` is 10000"), std::string::npos);
  EXPECT_FALSE(target_.check_files({{"config.json", "{"}}));
  EXPECT_FALSE(target_.check_files({{"tokenizer.json", "{}"}}));
}

TEST_F(EngineTargetTest, EndTokensAndTemplateTravelWithTheVersion) {
  const ModelFiles files = {{"generation_config.json", R"({"eos_token_id": [3, 4]})"},
                            {"chat_template.jinja", "hi"}};
  ASSERT_TRUE(target_.check_files(files));
  EXPECT_EQ(model_.get()->chat_template, nullptr);
  const auto before = model_.get();

  ASSERT_TRUE(blocking_commit(files));

  EXPECT_EQ(model_.get()->eos_token_ids, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_NE(model_.get()->chat_template, nullptr);
  EXPECT_EQ(before->chat_template, nullptr);  // who holds it goes on with it
  EXPECT_EQ(target_.current().label, "two");

  ASSERT_TRUE(blocking_commit(std::nullopt));
  EXPECT_EQ(model_.get()->eos_token_ids, (std::vector<std::uint32_t>{3, 4}));
}

TEST_F(EngineTargetTest, APatchThatFailsLeavesVersionAndFiles) {
  WeightTarget::Takeover takeover;
  takeover.version = {"blake3:two", "two", false};
  takeover.files = std::make_shared<const ModelFiles>(ModelFiles{{"chat_template.jinja", "hi"}});
  std::optional<Result<WeightTarget::Committed>> result;
  target_.commit_in_place([] { return Error(ErrorCode::kCorrupt, "no"); }, takeover,
                          [&](auto committed) { result = std::move(committed); });

  EXPECT_EQ(result->error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(model_.get()->chat_template, nullptr);
  EXPECT_EQ(target_.current().label, "a");
  EXPECT_FALSE(target_.history().check("two"));
}

TEST_F(EngineTargetTest, RemembersWhatItServed) {
  target_.rename({"blake3:one", "one", false});
  ASSERT_TRUE(blocking_commit(std::nullopt));
  target_.rename({"blake3:two", "second", false});

  for (const char* const passed : {"blake3:one", "one", "blake3:two", "two", "second"}) {
    EXPECT_TRUE(target_.history().check(passed)) << passed;
  }
  EXPECT_FALSE(target_.history().check("three"));
}

TEST_F(EngineTargetTest, TheSameContentAgainIsNoRollback) {
  WeightTarget::Takeover first;
  first.version = {"blake3:one", "one", false};
  target_.rename(first.version);
  ASSERT_TRUE(blocking_commit(std::nullopt));

  first.is_rollback = true;
  ASSERT_TRUE(blocking_commit(first));
  EXPECT_FALSE(target_.history().check("blake3:two"));

  ASSERT_TRUE(blocking_commit(std::nullopt));
  first.is_rollback = false;
  ASSERT_TRUE(blocking_commit(first));
  EXPECT_TRUE(target_.history().check("blake3:two"));
}

}  // namespace
}  // namespace weft
