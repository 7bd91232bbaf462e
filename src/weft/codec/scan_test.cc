#include "weft/codec/internal/scan.h"

#include <random>

#include <gtest/gtest.h>

#include "hwy/targets.h"
#include "weft/codec/delta_pairs_test.h"
#include "weft/codec/internal/elements.h"

namespace weft::internal {
namespace {

using delta_test::Bytes;

// Once for each instruction set that the passes were compiled for and this CPU has.
class Scan : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { use(GetParam()); }
  void TearDown() override { use(0); }

 private:
  static void use(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
INSTANTIATE_TEST_SUITE_P(Each, Scan, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

TEST_P(Scan, FindsEveryChangedElement) {
  for (const std::size_t elem_bytes : {1u, 2u, 4u, 8u}) {
    const std::size_t elements = 4096;
    Bytes base(elements * elem_bytes);
    Bytes next = base;
    std::mt19937 random(1);
    for (int i = 0; i < 500; ++i) next[random() % next.size()] ^= std::byte{0x80};
    std::vector<std::uint64_t> bits(elements / 64);
    changed_bits(base.data(), next.data(), elem_bytes, elements, bits.data());
    for (std::size_t i = 0; i < elements; ++i) {
      const bool differs = delta_test::element_at(base, i, elem_bytes) !=
                           delta_test::element_at(next, i, elem_bytes);
      ASSERT_EQ(bits[i / 64] >> (i % 64) & 1, differs ? 1u : 0u) << i;
    }
  }
}

TEST_P(Scan, ClassesAreThoseOfTheKeys) {
  std::mt19937 random(2);
  for (const ElemKind kind : delta_test::kKinds) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{31}, std::size_t{255}, kSegment}) {
      const Bytes elements = delta_test::any_bits(kind, count, 0, 3).first;
      ClassBounds classes;
      classes.classes = 1 + random() % kMostClasses;
      for (std::size_t c = 0; c + 1 < classes.classes; ++c) {
        classes.bounds[c] = static_cast<std::uint8_t>(1 + c * 17 + random() % 17);
      }
      SegmentKeys keys;
      std::array<std::uint32_t, kMostClasses> counts{};
      segment_counts(elements.data(), kind, count, classes, keys, counts);
      for (std::size_t c = 0; c < classes.classes; ++c) {
        const unsigned least = c == 0 ? 0 : classes.bounds[c - 1];
        const unsigned end = c + 1 == classes.classes ? 256 : classes.bounds[c];
        std::array<std::uint64_t, kSegmentWords> bits;
        class_bits(keys, classes, c, bits);
        std::uint32_t expected = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint64_t value = delta_test::element_at(elements, i, elem_size_bytes(kind));
          const unsigned key = with_element(elem_size_bytes(kind), [&]<typename T>(T) {
            return ElementRule<T>(kind).key(static_cast<T>(value));
          });
          const bool is_in = least <= key && key < end;
          expected += is_in ? 1 : 0;
          ASSERT_EQ(bits[i / 64] >> (i % 64) & 1, is_in ? 1u : 0u);
        }
        EXPECT_EQ(counts[c], expected);
      }
    }
  }
}

}  // namespace
}  // namespace weft::internal
