#include "weft/codec/internal/scan.h"

#include <random>

#include <gtest/gtest.h>

#include "hwy/targets.h"
#include "weft/codec/delta_pairs_test.h"
#include "weft/codec/internal/elements.h"
#include "weft/codec/internal/load_store.h"

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
    const std::size_t changed =
        changed_bits(base.data(), next.data(), elem_bytes, elements, bits.data());
    std::size_t expected = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      const bool differs = delta_test::element_at(base, i, elem_bytes) !=
                           delta_test::element_at(next, i, elem_bytes);
      ASSERT_EQ(bits[i / 64] >> (i % 64) & 1, differs ? 1u : 0u) << i;
      expected += differs ? 1 : 0;
    }
    EXPECT_EQ(changed, expected);
  }
}

unsigned key_of(const Bytes& elements, std::size_t i, ElemKind kind) {
  const std::uint64_t value = delta_test::element_at(elements, i, elem_size_bytes(kind));
  return with_element(elem_size_bytes(kind), [&]<typename T>(T) {
    return ElementRule<T>(kind).key(static_cast<T>(value));
  });
}

std::size_t class_of(unsigned key, const ClassBounds& classes) {
  std::size_t c = 0;
  while (c + 1 < classes.classes && key >= classes.bounds[c]) ++c;
  return c;
}

ClassBounds random_bounds(std::mt19937& random) {
  ClassBounds classes;
  classes.classes = 1 + random() % kMostClasses;
  for (std::size_t c = 0; c + 1 < classes.classes; ++c) {
    classes.bounds[c] = static_cast<std::uint8_t>(1 + c * 17 + random() % 17);
  }
  return classes;
}

TEST_P(Scan, CountsRanksAndSelectsByClass) {
  std::mt19937 random(2);
  for (const ElemKind kind : delta_test::kKinds) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{31}, std::size_t{255}, kSegment}) {
      const Bytes elements = delta_test::any_bits(kind, count, 0, 3).first;
      const ClassBounds classes = random_bounds(random);
      ClassCounts expected{};
      std::vector<InSegment> all;
      std::vector<std::uint8_t> expected_ranks;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t c = class_of(key_of(elements, i, kind), classes);
        all.push_back({static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(c)});
        expected_ranks.push_back(static_cast<std::uint8_t>(expected[c]++));
      }
      SegmentKeys keys;
      ClassCounts counts{};
      segment_counts(elements.data(), kind, count, classes, keys, counts);
      EXPECT_EQ(counts, expected);
      std::vector<std::uint8_t> ranks(count);
      segment_ranks(keys, classes, all, ranks.data());
      EXPECT_EQ(ranks, expected_ranks);

      // Every second element of each class changes, and one behind the segment.
      const std::vector<std::uint32_t> gaps(kMostClasses * kSegment, 1);
      ClassCursors cursors;
      cursors.gaps = gaps.data();
      for (std::size_t c = 0; c < kMostClasses; ++c) {
        cursors.next[c] = static_cast<std::uint32_t>(c * kSegment);
        cursors.end[c] = cursors.next[c] + expected[c] / 2 + 1;
        cursors.waits[c] = 1;
      }
      SegmentChanges changes;
      changes.elements.fill(0);
      find_in_segment(elements.data(), kind, count, classes, cursors, changes);
      for (std::size_t i = 0; i < count; ++i) {
        const bool is_changed = (changes.elements[i / 64] >> (i % 64) & 1) != 0;
        ASSERT_EQ(is_changed, expected_ranks[i] % 2 == 1) << i;
        if (!is_changed) continue;
        EXPECT_EQ(changes.index[i], all[i].class_index * kSegment + expected_ranks[i] / 2);
      }
      for (std::size_t c = 0; c < classes.classes; ++c) {
        EXPECT_EQ(cursors.waits[c], expected[c] % 2 == 0 ? 1u : 0u) << c;
      }
    }
  }
}

}  // namespace
}  // namespace weft::internal
