#include "weft/protocol/skeleton.h"

#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

WeightLayout layout() {
  return WeightLayout::make({{"model.embed_tokens.weight", DType::kBF16, {8, 4}},
                             {"model.norm.weight", DType::kBF16, {4}},
                             {"steps", DType::kI64, {1}}})
      .value();
}

std::vector<TensorSpec> offer() {
  return layout().tensors();
}

std::string refusal(const std::vector<TensorSpec>& offered, bool tied = false) {
  const auto plan = plan_upload(layout(), offered, tied);
  EXPECT_EQ(plan.error().code(), ErrorCode::kInvalidArgument);
  return plan.error().message();
}

TEST(PlanUpload, KeepsTheOrderOfTheOffer) {
  auto offered = offer();
  std::swap(offered[0], offered[1]);

  const auto plan = plan_upload(layout(), offered, false).value();

  EXPECT_EQ(plan.tensors[0].target, 1u);
  EXPECT_EQ(plan.tensors[1].target, 0u);
  EXPECT_FALSE(plan.converted);
}

TEST(PlanUpload, ConvertsFloatsAndSaysSo) {
  auto offered = offer();
  offered[1].dtype = DType::kF32;

  const auto plan = plan_upload(layout(), offered, false).value();

  EXPECT_TRUE(plan.converted);
  EXPECT_TRUE(plan.tensors[1].convert);
  EXPECT_FALSE(plan.tensors[0].convert);
}

TEST(PlanUpload, NamesEveryFaultAtOnceAndWhatWasExpected) {
  auto offered = offer();
  offered[0].shape = {4, 8};
  offered[1].name = "model.nrom.weight";
  offered[2].dtype = DType::kI32;

  const std::string message = refusal(offered);

  EXPECT_EQ(message,
            "tensors not in the model: model.nrom.weight; missing: model.norm.weight [4]; "
            "mismatch: model.embed_tokens.weight is [4, 8], expected [8, 4], "
            "steps is I32, expected I64");
}

TEST(PlanUpload, NamesTenAndCountsTheRest) {
  auto offered = offer();
  for (int i = 0; i < 13; ++i) offered.push_back({"x" + std::to_string(i), DType::kF32, {1}});

  const std::string message = refusal(offered);

  EXPECT_NE(message.find("x9 and 3 more"), std::string::npos) << message;
  EXPECT_EQ(message.find("x10"), std::string::npos) << message;
}

TEST(PlanUpload, RefusesIntegersForFloats) {
  auto offered = offer();
  offered[1].dtype = DType::kI32;

  EXPECT_NE(refusal(offered).find("model.norm.weight is I32"), std::string::npos);
}

TEST(PlanUpload, RefusesATensorTwiceUnderAnyName) {
  auto offered = offer();
  offered.push_back({"module.model.norm.weight", DType::kBF16, {4}});

  EXPECT_NE(refusal(offered).find("sent twice: module.model.norm.weight"), std::string::npos);
}

TEST(PlanUpload, TakesATiedHeadOnlyAsTheEmbeddingsTwin) {
  auto offered = offer();
  offered.push_back({"lm_head.weight", DType::kBF16, {8, 4}});
  const auto plan = plan_upload(layout(), offered, true).value();
  EXPECT_EQ(plan.tensors[3].target, std::nullopt);

  EXPECT_NE(refusal(offered, false).find("lm_head.weight"), std::string::npos);
  offered[3].dtype = DType::kF32;
  EXPECT_NE(refusal(offered, true).find("expected the same as"), std::string::npos);
}

TEST(CanonicalName, DropsWhatWrappersAdd) {
  EXPECT_EQ(canonical_name("module._orig_mod.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(canonical_name("_orig_mod.module.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(
      canonical_name(
          "model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.mlp.up_proj.weight"),
      "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(canonical_name("model.module.weight"), "model.module.weight");
}

}  // namespace
}  // namespace weft
