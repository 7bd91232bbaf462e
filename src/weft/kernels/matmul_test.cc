#include "weft/kernels/matmul.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "weft/kernels/target_test.h"

namespace weft::kernels {
namespace {

WEFT_EACH_TARGET(Matmul);

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr Summation kSummations[] = {Summation::kFast, Summation::kExact};
constexpr float kUntouched = -12345.0f;

// C [rows, n + 1], its last column untouched, computed in ranges of `columns` columns.
std::vector<float> product(const MatmulShape& shape, std::span<const float> a,
                           const TestWeights& weights, const Weights& bias, std::size_t columns) {
  std::vector<float> packed(packed_floats(shape), std::numeric_limits<float>::quiet_NaN());
  // The last range of rows first: their order is nobody's business.
  for (std::size_t end = shape.rows; end > 0;) {
    const std::size_t begin = (end - 1) / 3 * 3;
    pack_rows(shape, a, begin, end, packed);
    end = begin;
  }
  std::vector<float> scratch(kMatmulScratchFloats, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> c(shape.rows * (shape.n + 1), kUntouched);
  for (std::size_t n = 0; n < shape.n; n += columns) {
    matmul(shape, packed, weights.weights().data, bias, n, std::min(shape.n, n + columns), c.data(),
           shape.n + 1, scratch);
  }
  return c;
}

// Against fp64. The error of a sum of k products in fp32 is below k * 2^-24 * sum |a w|, in any
// order; it is seen to be far smaller, and 16 of them are allowed.
void expect_close(const MatmulShape& shape, std::span<const float> a, const TestWeights& weights,
                  std::span<const float> bias, const std::vector<float>& c) {
  for (std::size_t r = 0; r < shape.rows; ++r) {
    for (std::size_t j = 0; j < shape.n; ++j) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[j]);
      double size = std::abs(sum);
      for (std::size_t k = 0; k < shape.k; ++k) {
        const double term = static_cast<double>(a[r * shape.k + k]) *
                            static_cast<double>(weights.values()[j * shape.k + k]);
        sum += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(static_cast<double>(c[r * (shape.n + 1) + j]), sum, 16 * 0x1p-24 * size)
          << "row " << r << " column " << j << " rows " << shape.rows << " n " << shape.n << " k "
          << shape.k;
    }
    ASSERT_EQ(c[r * (shape.n + 1) + shape.n], kUntouched);
  }
}

void check_shape(const MatmulShape& shape, bool with_bias) {
  const auto a = random_floats(shape.rows * shape.k, 1);
  const TestWeights weights(random_floats(shape.n * shape.k, 2, 0.1f), shape.dtype);
  const TestWeights bias(random_floats(shape.n, 3), shape.dtype);
  const auto c = product(shape, a, weights, with_bias ? bias.weights() : Weights{}, 29);
  expect_close(shape, a, weights, with_bias ? std::span(bias.values()) : std::span<const float>(),
               c);
}

TEST_P(Matmul, EveryNumberOfRowsIsRight) {
  for (const DType dtype : kDTypes) {
    for (const Summation summation : kSummations) {
      for (std::size_t rows = 0; rows <= 41; ++rows) {
        check_shape({rows, 53, 40, dtype, summation}, rows % 2 == 0);
      }
      for (const std::size_t rows : {95, 96, 97, 98, 99, 100, 103}) {  // AVX2 changes at 96
        check_shape({rows, 53, 40, dtype, summation}, rows % 2 == 0);
      }
    }
  }
}

TEST_P(Matmul, EveryLengthOfKIsRight) {
  for (const DType dtype : kDTypes) {
    for (const Summation summation : kSummations) {
      for (std::size_t k = 0; k <= 67; ++k) {
        for (const std::size_t rows : {1, 7, 35, 98})
          check_shape({rows, 5, k, dtype, summation}, false);
      }
    }
  }
}

TEST_P(Matmul, EveryNumberOfColumnsIsRight) {
  for (const Summation summation : kSummations) {
    for (std::size_t n = 0; n <= 101; n += 1) {
      for (const std::size_t rows : {1, 9, 33, 97}) {
        check_shape({rows, n, 33, DType::kBF16, summation}, true);
      }
    }
  }
}

TEST_P(Matmul, ManyBlocksOfRowsColumnsAndDepthAreRight) {
  for (const DType dtype : kDTypes) {
    for (const Summation summation : kSummations) {
      check_shape({267, 61, 523, dtype, summation}, true);
    }
  }
  check_shape({3, 61, 8192, DType::kBF16, Summation::kExact}, true);
}

// An engine reserves for the most rows that it may have.
TEST_P(Matmul, WhatHoldsManyPackedRowsHoldsFewer) {
  for (const DType dtype : kDTypes) {
    for (const Summation summation : kSummations) {
      for (const std::size_t k : {1, 20, 33, 300}) {
        std::size_t before = 0;
        for (std::size_t rows = 0; rows <= 130; ++rows) {
          const std::size_t floats = packed_floats({rows, 5, k, dtype, summation});
          ASSERT_GE(floats, before) << "rows " << rows << " k " << k;
          before = floats;
        }
      }
    }
  }
}

// Row 0 of everything is the same activations; other rows differ. Bit for bit.
TEST_P(Matmul, ExactRowDependsOnItselfAlone) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t k : {1, 31, 200}) {
      const std::size_t n = 50;
      const TestWeights weights(random_floats(n * k, 2, 0.1f), dtype);
      const TestWeights bias(random_floats(n, 3), dtype);
      const auto a = random_floats(33 * k, 4);
      std::vector<std::vector<float>> alone;
      for (std::size_t r = 0; r < 33; ++r) {
        alone.push_back(product({1, n, k, dtype, Summation::kExact}, std::span(a).subspan(r * k, k),
                                weights, bias.weights(), n));
      }
      for (std::size_t rows = 1; rows <= 33; ++rows) {
        const std::size_t columns = 1 + rows * 7 % n;
        const auto c =
            product({rows, n, k, dtype, Summation::kExact}, a, weights, bias.weights(), columns);
        for (std::size_t r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(&c[r * (n + 1)], alone[r].data(), n * sizeof(float)), 0)
              << "row " << r << " of " << rows << " in ranges of " << columns;
        }
      }
    }
  }
}

TEST_P(Matmul, PartitionOfColumnsChangesNothing) {
  for (const Summation summation : kSummations) {
    for (const std::size_t rows : {1, 5, 8, 35}) {
      const MatmulShape shape = {rows, 97, 70, DType::kBF16, summation};
      const auto a = random_floats(rows * shape.k, 1);
      const TestWeights weights(random_floats(shape.n * shape.k, 2), shape.dtype);
      const auto whole = product(shape, a, weights, {}, shape.n);
      for (std::size_t columns = 1; columns < shape.n; ++columns) {
        ASSERT_EQ(product(shape, a, weights, {}, columns), whole) << columns;
      }
    }
  }
}

TEST_P(Matmul, NanAndInfinityStayInTheirRowAndColumn) {
  for (const Summation summation : kSummations) {
    for (const std::size_t rows : {3, 35}) {
      const MatmulShape shape = {rows, 20, 37, DType::kBF16, summation};
      auto a = random_floats(rows * shape.k, 1);
      auto w = random_floats(shape.n * shape.k, 2);
      a[1 * shape.k + 36] = std::numeric_limits<float>::quiet_NaN();
      w[4 * shape.k + 36] = std::numeric_limits<float>::infinity();
      const auto c = product(shape, a, TestWeights(w, shape.dtype), {}, 7);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t j = 0; j < shape.n; ++j) {
          ASSERT_EQ(std::isfinite(c[r * (shape.n + 1) + j]), r != 1 && j != 4) << r << " " << j;
        }
      }
    }
  }
}

// W = every fp16 there is, one column each, times 1.
TEST_P(Matmul, ReadsEveryHalf) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> expected(halves.size());
  convert_to_f32(std::as_bytes(std::span(halves)), DType::kF16, expected);
  const MatmulShape shape = {1, halves.size(), 1, DType::kF16, Summation::kFast};
  const std::vector<float> one = {1.0f};
  std::vector<float> packed(packed_floats(shape)), scratch(kMatmulScratchFloats), c(shape.n);
  pack_rows(shape, one, 0, 1, packed);

  matmul(shape, packed, std::as_bytes(std::span(halves)).data(), {}, 0, shape.n, c.data(), shape.n,
         scratch);

  for (std::size_t i = 0; i < c.size(); ++i) {
    ASSERT_TRUE(c[i] == expected[i] || (std::isnan(c[i]) && std::isnan(expected[i]))) << i;
  }
}

}  // namespace
}  // namespace weft::kernels
