#pragma once
// Runs a test once for each instruction set that the kernels were compiled for and this CPU has.
// Also for the bench.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hwy/targets.h"
#include "weft/kernels/convert.h"
#include "weft/kernels/weights.h"

namespace weft::kernels {

inline void use_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

inline std::string target_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

class TargetTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { use_target(GetParam()); }
  void TearDown() override { use_target(0); }
};

#define WEFT_EACH_TARGET(suite)                                                                 \
  class suite : public TargetTest {};                                                           \
  INSTANTIATE_TEST_SUITE_P(Each, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                           target_name)

// Normally distributed numbers, the same for a seed.
inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

// Floats rounded to a dtype, as bytes and as the floats that they now are.
class TestWeights {
 public:
  TestWeights(std::span<const float> values, DType dtype)
      : bytes_(values.size() * dtype_size_bytes(dtype)), values_(values.size()), dtype_(dtype) {
    convert(std::as_bytes(values), DType::kF32, bytes_, dtype);
    convert_to_f32(bytes_, dtype, values_);
  }
  Weights weights() const { return {bytes_.data(), dtype_}; }
  const std::vector<float>& values() const { return values_; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
  DType dtype_;
};

}  // namespace weft::kernels
