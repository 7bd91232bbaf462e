#include "weft/tensor/tensor.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "weft/tensor/arena.h"
#include "weft/tensor/weight_set.h"

namespace weft {
namespace {

TEST(DType, NamesParseBack) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(try_parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(try_parse_dtype("bf16"), std::nullopt);
  EXPECT_EQ(try_parse_torch_dtype("torch.bfloat16"), DType::kBF16);
  EXPECT_EQ(try_parse_torch_dtype("half"), DType::kF16);
  EXPECT_EQ(try_parse_torch_dtype(""), std::nullopt);
}

TEST(Shape, CountsElementsAndSeesOverflow) {
  EXPECT_EQ(shape_elems({}).value(), 1u);
  EXPECT_EQ(shape_elems({3, 4}).value(), 12u);
  EXPECT_EQ(shape_elems({0, 7}).value(), 0u);
  EXPECT_EQ(shape_elems({1ull << 63, 2}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(shape_elems({1ull << 63, 2, 0}).has_value());
}

TEST(TensorSpec, SizeNamesTheTensorThatOverflows) {
  const auto size = tensor_size_bytes({"big", DType::kF32, {1ull << 62, 1}});

  EXPECT_NE(size.error().message().find("big"), std::string::npos);
}

TEST(Arena, IsWritableAndMoves) {
  Arena arena = Arena::blocking_allocate(100'000).value();
  arena.bytes().back() = std::byte{7};

  const Arena moved = std::move(arena);

  EXPECT_EQ(moved.bytes().size(), 100'000u);
  EXPECT_EQ(moved.bytes().back(), std::byte{7});
}

TEST(WeightLayout, SortsAlignsAndFinds) {
  const auto layout =
      WeightLayout::make({{"b", DType::kBF16, {3}}, {"a", DType::kF32, {5, 7}}}).value();

  EXPECT_EQ(layout.tensors()[0].name, "a");
  EXPECT_EQ(layout.try_find("b"), 1u);
  EXPECT_EQ(layout.try_find("c"), std::nullopt);
  EXPECT_EQ(layout.offset_bytes(1), 192u);
  EXPECT_EQ(layout.size_bytes(), 256u);
  EXPECT_EQ(layout.payload_bytes(), 146u);
}

TEST(WeightLayout, RefusesANameGivenTwice) {
  const auto layout = WeightLayout::make({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}});

  EXPECT_EQ(layout.error().code(), ErrorCode::kInvalidArgument);
}

TEST(WeightSet, TensorsDoNotOverlap) {
  auto layout = std::make_shared<const WeightLayout>(
      WeightLayout::make({{"a", DType::kU8, {65}}, {"b", DType::kU8, {1}}}).value());
  auto set = WeightSet::blocking_allocate(layout).value();

  std::ranges::fill(set->tensor(0), std::byte{1});
  set->tensor(1)[0] = std::byte{2};

  EXPECT_EQ(set->tensor(0).back(), std::byte{1});
}

}  // namespace
}  // namespace weft
