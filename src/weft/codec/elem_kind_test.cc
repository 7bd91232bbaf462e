#include "weft/codec/elem_kind.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ElemKind, OfEachDtypeHasItsSize) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(elem_size_bytes(elem_kind_of(dtype)), dtype_size_bytes(dtype)) << dtype_name(dtype);
  }
  EXPECT_EQ(elem_kind_of(DType::kBF16), ElemKind::kBF16);
  EXPECT_EQ(elem_kind_of(DType::kI16), ElemKind::kBits16);
}

}  // namespace
}  // namespace weft
