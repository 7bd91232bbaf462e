#include "weft/codec/internal/entropy.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace weft::internal {
namespace {

std::uint32_t sum_of(const SymbolTable& table) {
  std::uint32_t sum = 0;
  for (unsigned s = 0; s < kSymbols; ++s) sum += table.frequency(s);
  return sum;
}

TEST(Numbers, AllOfThemHaveOneSymbolAndItsBits) {
  std::uint64_t expected = 0;
  for (unsigned s = 0; s < kSymbols; ++s) {
    EXPECT_EQ(kOctaves[s].first, expected) << s;
    EXPECT_EQ(symbol_of(expected), s);
    const std::uint64_t last = expected + (std::uint64_t{1} << kOctaves[s].extra_bits) - 1;
    EXPECT_EQ(symbol_of(last), s);
    expected = last + 1;
  }
  EXPECT_EQ(expected, 0u);  // wrapped behind 2^64 - 1
}

TEST(Bits, OfAnyWidthComeBackAndBehindTheEndAreZeros) {
  std::mt19937_64 random(1);
  std::vector<std::pair<std::uint64_t, unsigned>> values;
  BitWriter writer;
  for (int i = 0; i < 10'000; ++i) {
    const unsigned width = static_cast<unsigned>(random() % 64);
    const std::uint64_t value = random() & ((std::uint64_t{1} << width) - 1);
    values.emplace_back(value, width);
    writer.put(value, width);
  }
  const auto bytes = std::move(writer).finish();
  BitReader reader(bytes);
  for (const auto& [value, width] : values) ASSERT_EQ(reader.get(width), value);
  EXPECT_EQ(reader.bytes_read(), bytes.size());
  EXPECT_EQ(reader.rest_of_byte(), 0u);
  EXPECT_EQ(reader.get(63), 0u);
  EXPECT_GT(reader.bytes_read(), bytes.size());
}

TEST(SymbolTables, AnyCodesThatAreReadFillTheTable) {
  std::mt19937 random(2);
  int tables = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto highest = static_cast<unsigned>(1 + random() % 31);
    BitWriter writer;
    const auto last = static_cast<unsigned>(random() % kSymbols);
    writer.put(last, 7);
    for (unsigned s = 0; s <= last; ++s) {
      writer.put(s == last ? highest : random() % (highest + 1), 5);
    }
    const auto bytes = std::move(writer).finish();
    BitReader reader(bytes);
    bool ok = false;
    const SymbolTable table(reader, ok);
    if (!ok) continue;
    ++tables;
    ASSERT_EQ(sum_of(table), kTableSize);
    const auto decoding = std::make_unique<SymbolTable::Decoding>();
    table.fill(*decoding);
  }
  EXPECT_GT(tables, 5000);
}

TEST(SymbolTables, ManyRareSymbolsBesideAFewLeaveEachAPlace) {
  for (unsigned common = 1; common < kSymbols; ++common) {
    std::array<std::uint32_t, kSymbols> counts;
    counts.fill(1);
    for (unsigned s = 0; s < common; ++s) counts[s] = 8'000'000 / common;
    const SymbolTable table(counts);
    EXPECT_EQ(sum_of(table), kTableSize);
    for (unsigned s = 0; s < kSymbols; ++s) EXPECT_GE(table.frequency(s), 1u);
  }
}

TEST(SymbolTables, AnUnusedLastSymbolIsNoTable) {
  BitWriter writer;
  writer.put(1, 7);
  writer.put(3, 5);
  writer.put(0, 5);
  const auto bytes = std::move(writer).finish();
  BitReader reader(bytes);
  bool ok = true;
  const SymbolTable table(reader, ok);
  EXPECT_FALSE(ok);
}

TEST(Symbols, ComeBackInTurnsOfFourStatesWithinAPercentOfTheirEntropy) {
  std::mt19937 random(3);
  std::geometric_distribution<int> draw(0.3);
  std::vector<unsigned> symbols(100'000);
  std::array<std::uint32_t, kSymbols> counts{};
  for (unsigned& s : symbols) ++counts[s = static_cast<unsigned>(std::min(draw(random), 127))];
  const SymbolTable table(counts);
  SymbolWriter writer;
  for (std::size_t i = symbols.size(); i-- > 0;) {
    std::uint32_t start = 0;
    for (unsigned s = 0; s < symbols[i]; ++s) start += table.frequency(s);
    writer.put(i % kStates, start, table.frequency(symbols[i]));
  }
  std::vector<std::byte> body;
  writer.finish(body);

  const auto decoding = std::make_unique<SymbolTable::Decoding>();
  table.fill(*decoding);
  SymbolReader reader(body);
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    ASSERT_EQ(reader.get(i % kStates, *decoding), symbols[i]);
  }
  EXPECT_TRUE(reader.is_finished(0));
  EXPECT_FALSE(reader.is_finished(1));
  double bits = 0;
  const auto total = static_cast<double>(symbols.size());
  for (const std::uint32_t n : counts) bits += n == 0 ? 0 : n * std::log2(total / n);
  EXPECT_LT(static_cast<double>(body.size()), 1.01 * bits / 8 + 16);
}

TEST(Log2, IsTrueToAThousandth) {
  for (std::uint64_t x = 1; x < 100'000; ++x) {
    EXPECT_NEAR(static_cast<double>(log2_fixed(x)) / 65536, std::log2(static_cast<double>(x)),
                1e-3);
  }
  EXPECT_EQ(log2_fixed(1), 0u);
  EXPECT_EQ(log2_fixed(std::uint64_t{1} << 40), 40u << 16);
}

}  // namespace
}  // namespace weft::internal
