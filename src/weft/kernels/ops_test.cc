#include "weft/kernels/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "weft/kernels/target_test.h"

namespace weft::kernels {
namespace {

WEFT_EACH_TARGET(Ops);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -12345.0f;
// Four vectors of the widest target and one more.
constexpr std::size_t kLengths = 4 * 16 + 2;

double f64(float x) {
  return static_cast<double>(x);
}

TEST_P(Ops, RmsNormAnyLengthAndDtype) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (std::size_t n = 1; n < kLengths; ++n) {
      const auto x = random_floats(n + 1, 1, 3.0f);
      const TestWeights weight(random_floats(n, 2), dtype);
      std::vector<float> out(n + 2, kUntouched);
      const std::span<const float> row = std::span(x).subspan(1);
      rms_norm(row, weight.weights(), 1e-5f, std::span(out).subspan(1, n));
      double squares = 0;
      for (const float v : row) squares += f64(v) * f64(v);
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      for (std::size_t i = 0; i < n; ++i) {
        const double expected = f64(weight.values()[i]) * f64(row[i]) * scale;
        ASSERT_NEAR(f64(out[i + 1]), expected, 16 * 0x1p-24 * std::abs(expected)) << n;
      }
      ASSERT_EQ(out.front(), kUntouched);
      ASSERT_EQ(out.back(), kUntouched);
    }
  }
}

TEST_P(Ops, RmsNormMayBeInPlace) {
  const auto x = random_floats(37, 1);
  const TestWeights weight(random_floats(37, 2), DType::kBF16);
  std::vector<float> out(37), in_place = x;

  rms_norm(x, weight.weights(), 1e-6f, out);
  rms_norm(in_place, weight.weights(), 1e-6f, in_place);

  EXPECT_EQ(in_place, out);
}

TEST_P(Ops, RopeRotatesHalves) {
  for (std::size_t half = 1; half < kLengths; ++half) {
    const std::size_t heads = 3;
    const auto x = random_floats(heads * 2 * half, 1);
    std::vector<float> cos(half), sin(half), out = x;
    for (std::size_t i = 0; i < half; ++i) {
      cos[i] = std::cos(static_cast<float>(i) * 0.3f);
      sin[i] = std::sin(static_cast<float>(i) * 0.3f);
    }
    rope(out, cos, sin);
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t a = h * 2 * half + i;
        const std::size_t b = a + half;
        const double size = 4 * 0x1p-24 * (std::abs(f64(x[a])) + std::abs(f64(x[b])));
        ASSERT_NEAR(f64(out[a]), f64(x[a]) * f64(cos[i]) - f64(x[b]) * f64(sin[i]), size);
        ASSERT_NEAR(f64(out[b]), f64(x[b]) * f64(cos[i]) + f64(x[a]) * f64(sin[i]), size);
      }
    }
  }
}

TEST_P(Ops, SiluIsWithinItsBoundEverywhere) {
  std::vector<float> gate;
  for (float x = -87.0f; x < 100.0f; x += 0.0137f) gate.push_back(x);
  for (int e = -126; e < 10; ++e) gate.push_back(std::ldexp(1.37f, e) * (e < 6 ? -1.0f : 1.0f));
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> out(gate.size());

  silu_mul(gate, up, out);

  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = f64(gate[i]) / (1.0 + std::exp(-f64(gate[i])));
    ASSERT_NEAR(f64(out[i]), expected, 4 * 0x1p-23 * std::abs(expected)) << gate[i];
  }
}

TEST_P(Ops, SiluFarBelowZeroIsNoFartherFromTheTruthThanZeroIs) {
  std::vector<float> gate;
  for (float x = -87.0f; x > -120.0f; x -= 0.0137f) gate.push_back(x);
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> out(gate.size());

  silu_mul(gate, up, out);

  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = f64(gate[i]) / (1.0 + std::exp(-f64(gate[i])));
    ASSERT_GE(f64(out[i]), expected * (1 + 4 * 0x1p-23)) << gate[i];
    ASSERT_LE(out[i], 0.0f) << gate[i];
    ASSERT_LT(std::abs(expected), 1.5e-36);
  }
}

TEST_P(Ops, SiluOfWhatIsSpecial) {
  const std::vector<float> gate = {0.0f, -100.0f, -1000.0f, -3e38f, 3e38f, kInfinity, kNan, 1.0f};
  const std::vector<float> up = {5.0f, 1.0f, 1.0f, 1.0f, 0.5f, 1.0f, 1.0f, kNan};
  std::vector<float> out(gate.size());

  silu_mul(gate, up, out);

  EXPECT_EQ(out[0], 0.0f);
  for (const std::size_t i : {1, 2, 3}) EXPECT_NEAR(out[i], 0.0f, 1e-36f);
  EXPECT_EQ(out[4], 1.5e38f);
  EXPECT_EQ(out[5], kInfinity);
  EXPECT_TRUE(std::isnan(out[6]) && std::isnan(out[7]));
}

TEST_P(Ops, ElementwiseOpsTakeAnyLengthAndTouchNothingElse) {
  for (std::size_t n = 0; n < kLengths; ++n) {
    const auto x = random_floats(n + 1, 1);
    const auto y = random_floats(n + 1, 2);
    std::vector<float> sum(x), silu(n + 2, kUntouched);
    add(std::span(sum).subspan(1), std::span(y).subspan(1));
    silu_mul(std::span(x).subspan(1), std::span(y).subspan(1), std::span(silu).subspan(1, n));
    ASSERT_EQ(sum[0], x[0]);
    for (std::size_t i = 1; i <= n; ++i) {
      ASSERT_EQ(sum[i], x[i] + y[i]);
      // An element's result does not depend on its place.
      float one;
      silu_mul(std::span(&x[i], 1), std::span(&y[i], 1), std::span(&one, 1));
      ASSERT_EQ(silu[i], one);
    }
    ASSERT_EQ(silu.front(), kUntouched);
    ASSERT_EQ(silu.back(), kUntouched);
  }
}

double reference_log_sum_exp(std::span<const float> x) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float v : x) largest = std::max(largest, f64(v));
  double sum = 0;
  for (const float v : x) sum += std::exp(f64(v) - largest);
  return largest + std::log(sum);
}

TEST_P(Ops, LogSumExpIsWithinAMillionth) {
  for (std::size_t n = 1; n < kLengths; ++n) {
    const auto x = random_floats(n, 1, 5.0f);
    ASSERT_NEAR(log_sum_exp(x), reference_log_sum_exp(x), 1e-6) << n;
  }
  const auto vocabulary = random_floats(151'936, 2, 3.0f);
  EXPECT_NEAR(log_sum_exp(vocabulary), reference_log_sum_exp(vocabulary), 1e-6);
  const std::vector<float> equal(262'144, -7.0f);
  EXPECT_NEAR(log_sum_exp(equal), std::log(262'144.0) - 7.0, 1e-6);
}

TEST_P(Ops, LogSumExpOfWhatIsSpecial) {
  for (const std::size_t n : {3, 40}) {
    std::vector<float> x(n, -kInfinity);
    EXPECT_EQ(log_sum_exp(x), -f64(kInfinity));
    for (const std::size_t place : {std::size_t{0}, n - 1}) {
      x.assign(n, -kInfinity);
      x[place] = 2.5f;
      EXPECT_NEAR(log_sum_exp(x), 2.5, 1e-6);
      x[place] = kInfinity;
      EXPECT_EQ(log_sum_exp(x), f64(kInfinity));
      x[n / 2] = kNan;
      EXPECT_TRUE(std::isnan(log_sum_exp(x)));
      x.assign(n, 1.0f);
      x[place] = kNan;
      EXPECT_TRUE(std::isnan(log_sum_exp(x)));
    }
  }
  EXPECT_EQ(log_sum_exp({}), -f64(kInfinity));
}

TEST_P(Ops, ExpIsWithinTwoUlp) {
  std::vector<float> x = {0.0f};
  for (float v = -87.0f; v < 0.0f; v += 0.00731f) x.push_back(v);
  std::vector<float> weights(x.size());

  const double sum = exp_weights(x, 1.0f, weights);

  double expected_sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(f64(x[i]));
    expected_sum += f64(weights[i]);
    ASSERT_NEAR(f64(weights[i]), expected, 2 * 0x1p-23 * expected) << x[i];
  }
  EXPECT_NEAR(sum, expected_sum, 1e-6 * expected_sum);
}

TEST_P(Ops, ExpWeightsScaleAndGiveNothingToMinusInfinity) {
  std::vector<float> x = {1.0f, -kInfinity, 3.0f, -400.0f, 2.0f};

  const double sum = exp_weights(x, 2.0f, x);

  EXPECT_NEAR(f64(x[0]), std::exp(-4.0), 1e-7);
  EXPECT_EQ(x[1], 0.0f);
  EXPECT_EQ(x[2], 1.0f);
  EXPECT_EQ(x[3], 0.0f);
  EXPECT_NEAR(sum, 1 + std::exp(-4.0) + std::exp(-2.0), 1e-6);
}

TEST_P(Ops, ArgmaxIsTheFirstOfTheLargest) {
  for (std::size_t n = 1; n < kLengths; ++n) {
    for (std::size_t place = 0; place < n; ++place) {
      std::vector<float> x(n, -1.0f);
      x[place] = x.back() = 4.0f;
      ASSERT_EQ(argmax(x), place);
      if (place > 0) x[place - 1] = kNan;
      ASSERT_EQ(argmax(x), place);
    }
  }
  EXPECT_EQ(argmax(std::vector<float>{kNan, -kInfinity, -kInfinity}), 1u);
  EXPECT_EQ(argmax(std::vector<float>(20, kNan)), 0u);
  EXPECT_EQ(argmax({}), 0u);
}

TEST_P(Ops, RankCountsWhatIsAsLarge) {
  for (std::size_t n = 1; n < kLengths; ++n) {
    std::vector<float> x(n);
    std::iota(x.begin(), x.end(), 0.0f);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(count_at_least(x, x[i]), n - i);
  }
  EXPECT_EQ(count_at_least(std::vector<float>{2.0f, kNan, 2.0f, 1.0f}, 2.0f), 2u);
}

TEST_P(Ops, TopKIsSortedAndStable) {
  for (std::size_t n = 1; n < kLengths; ++n) {
    auto x = random_floats(n, 7);
    for (float& v : x) v = std::round(v * 4.0f);  // many equals
    if (n > 3) x[n / 2] = kNan;
    if (n > 5) x[n / 3] = -kInfinity;
    std::vector<std::uint32_t> expected(n);
    std::iota(expected.begin(), expected.end(), 0u);
    std::ranges::stable_sort(expected, [&](std::uint32_t a, std::uint32_t b) {
      return (std::isnan(x[a]) ? -kInfinity : x[a]) > (std::isnan(x[b]) ? -kInfinity : x[b]);
    });
    for (std::size_t k = 0; k <= n; ++k) {
      std::vector<std::uint32_t> indices(k);
      top_k(x, indices);
      ASSERT_TRUE(std::ranges::equal(indices, std::span(expected).first(k))) << n << " " << k;
    }
  }
}

}  // namespace
}  // namespace weft::kernels
