#include "weft/kernels/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace weft::kernels {
namespace {

template <class To, class From>
To convert_one(From from, DType from_dtype, DType to_dtype) {
  To to;
  convert(std::as_bytes(std::span(&from, 1)), from_dtype, std::as_writable_bytes(std::span(&to, 1)),
          to_dtype);
  return to;
}

// How a 16-bit format is laid out, and its value by definition.
struct Format {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;

  double value(std::uint16_t bits) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    const int whole = exponent == 0 ? mantissa : mantissa | (1 << mantissa_bits);
    return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
  }
};

constexpr Format kFormats[] = {{DType::kBF16, 8, 7}, {DType::kF16, 5, 10}};

TEST(Convert, EverySixteenBitValueWidensToWhatItMeans) {
  for (const Format& format : kFormats) {
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const double expected = format.value(bits);
      const auto narrow = convert_one<float>(bits, format.dtype, DType::kF32);
      const auto wide = convert_one<double>(bits, format.dtype, DType::kF64);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(narrow) && std::isnan(wide)) << i;
      } else {
        ASSERT_EQ(static_cast<double>(narrow), expected) << i;
        ASSERT_EQ(wide, expected) << i;
        ASSERT_EQ(std::signbit(narrow), bits >= 0x8000) << i;
      }
    }
  }
}

TEST(Convert, EverySixteenBitValueComesBack) {
  for (const Format& format : kFormats) {
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const auto wide = convert_one<float>(bits, format.dtype, DType::kF32);
      const auto back = convert_one<std::uint16_t>(wide, DType::kF32, format.dtype);
      if (std::isnan(wide)) {
        ASSERT_EQ(back & 0x8000, bits & 0x8000) << i;
        ASSERT_TRUE(std::isnan(format.value(back))) << i;
      } else {
        ASSERT_EQ(back, bits);
      }
    }
  }
}

// Between each two neighbours: below the middle, the middle, and above it, in fp32 and in fp64. The
// middle goes to the even one. In fp64 the neighbours of the middle are too close for fp32:
// rounding twice would go wrong.
TEST(Convert, RoundsToNearestEvenOnce) {
  for (const Format& format : kFormats) {
    const std::uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
    for (std::uint32_t i = 0; i < infinity; ++i) {
      const double low = format.value(static_cast<std::uint16_t>(i));
      // Past the largest, rounding goes as if the exponent had one value more.
      const double high = i + 1 < infinity
                              ? format.value(static_cast<std::uint16_t>(i + 1))
                              : 2 * low - format.value(static_cast<std::uint16_t>(i - 1));
      const double middle = low + (high - low) / 2;
      const auto even = static_cast<std::uint16_t>(i % 2 == 0 ? i : i + 1);
      for (const double sign : {1.0, -1.0}) {
        const std::uint32_t sign_bit = sign < 0 ? 0x8000 : 0;
        const auto from_f64 = [&](double x) -> std::uint32_t {
          return convert_one<std::uint16_t>(sign * x, DType::kF64, format.dtype);
        };
        ASSERT_EQ(from_f64(middle), even | sign_bit) << i;
        ASSERT_EQ(from_f64(std::nextafter(middle, 0.0)), i | sign_bit) << i;
        ASSERT_EQ(from_f64(std::nextafter(middle, 1e300)), (i + 1) | sign_bit) << i;
        const auto exact = static_cast<float>(middle);
        if (static_cast<double>(exact) != middle) continue;  // half of fp32's smallest
        const auto from_f32 = [&](float x) -> std::uint32_t {
          return convert_one<std::uint16_t>(static_cast<float>(sign) * x, DType::kF32,
                                            format.dtype);
        };
        ASSERT_EQ(from_f32(exact), even | sign_bit) << i;
        ASSERT_EQ(from_f32(std::nextafter(exact, 0.0f)), i | sign_bit) << i;
        ASSERT_EQ(from_f32(std::nextafter(exact, std::numeric_limits<float>::infinity())),
                  (i + 1) | sign_bit)
            << i;
      }
    }
  }
}

TEST(Convert, NanStaysNanWhateverItsBits) {
  for (const Format& format : kFormats) {
    for (const std::uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0x7FC00000u}) {
      const auto x = convert_one<std::uint16_t>(bits, DType::kF32, format.dtype);
      EXPECT_TRUE(std::isnan(format.value(x))) << std::hex << bits;
      EXPECT_EQ(x & 0x8000u, (bits >> 16) & 0x8000u);
      EXPECT_NE(x & (1u << (format.mantissa_bits - 1)), 0u) << "not quiet";
    }
    const auto from_f64 = convert_one<std::uint16_t>(std::numeric_limits<double>::quiet_NaN(),
                                                     DType::kF64, format.dtype);
    EXPECT_TRUE(std::isnan(format.value(from_f64)));
  }
}

TEST(Convert, OverflowIsInfinityAndUnderflowIsZero) {
  EXPECT_EQ(convert_one<float>(1e300, DType::kF64, DType::kF32),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(convert_one<std::uint16_t>(-1e300, DType::kF64, DType::kBF16), 0xFF80);
  EXPECT_EQ(convert_one<std::uint16_t>(65520.0f, DType::kF32, DType::kF16), 0x7C00);
  EXPECT_EQ(convert_one<std::uint16_t>(65519.0f, DType::kF32, DType::kF16), 0x7BFF);
  EXPECT_EQ(convert_one<std::uint16_t>(-1e-300, DType::kF64, DType::kF16), 0x8000);
}

TEST(Convert, BetweenSixteenBitFormatsGoesByValue) {
  EXPECT_EQ(convert_one<std::uint16_t>(std::uint16_t{0x3F80}, DType::kBF16, DType::kF16), 0x3C00);
  EXPECT_EQ(convert_one<std::uint16_t>(std::uint16_t{0x3C01}, DType::kF16, DType::kBF16), 0x3F80);
}

TEST(Convert, AnyLengthAndAlignment) {
  for (std::size_t count = 0; count <= 70; ++count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 3.0f;
    std::vector<std::byte> from(count * 4 + 1), to(count * 2 + 3, std::byte{0x5A});
    if (count > 0) std::memcpy(from.data() + 1, values.data(), count * 4);

    convert(std::span(from).subspan(1), DType::kF32, std::span(to).subspan(1, count * 2),
            DType::kBF16);

    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, to.data() + 1 + 2 * i, 2);
      EXPECT_EQ(kFormats[0].value(bits), static_cast<double>(values[i]));
    }
    EXPECT_EQ(to.front(), std::byte{0x5A});
    EXPECT_EQ(to.back(), std::byte{0x5A});
  }
}

}  // namespace
}  // namespace weft::kernels
