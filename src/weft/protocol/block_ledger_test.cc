#include "weft/protocol/block_ledger.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "weft/protocol/block_frame.h"

namespace weft {
namespace {

using Claim = BlockLedger::Claim;
using Runs = std::vector<BlockLedger::Run>;

constexpr std::array<std::uint64_t, 3> kSizes{3 * kBlockBytes + 1, 0, 5};

TEST(BlockLedger, ABlockHasOneWriterAndIsWrittenOnce) {
  BlockLedger ledger(kSizes);
  EXPECT_EQ(ledger.claim(0, 1), Claim::kYours);
  EXPECT_EQ(ledger.claim(0, 1), Claim::kFilling);
  ledger.failed(0, 1);
  EXPECT_EQ(ledger.claim(0, 1), Claim::kYours);

  ledger.verified(0, 1, Digest{});

  EXPECT_EQ(ledger.claim(0, 1), Claim::kVerified);
  EXPECT_EQ(ledger.verified_bytes(), kBlockBytes);
}

TEST(BlockLedger, KnowsItsGrid) {
  BlockLedger ledger(kSizes);

  EXPECT_EQ(ledger.claim(0, 4), Claim::kNone);
  EXPECT_EQ(ledger.claim(1, 0), Claim::kNone);
  EXPECT_EQ(ledger.claim(3, 0), Claim::kNone);
  EXPECT_EQ(ledger.claim(UINT64_MAX, UINT64_MAX), Claim::kNone);
  EXPECT_EQ(block_length(kSizes[0], 2), kBlockBytes);
  EXPECT_EQ(block_length(kSizes[0], 3), 1u);
}

TEST(BlockLedger, SaysWhatIsMissingAsRuns) {
  BlockLedger ledger(kSizes);
  EXPECT_EQ(ledger.missing(), (Runs{{0, 0, 4}, {2, 0, 1}}));
  ledger.claim(0, 1);
  ledger.verified(0, 1, Digest{});
  ledger.claim(2, 0);

  EXPECT_EQ(ledger.missing(), (Runs{{0, 0, 1}, {0, 2, 2}, {2, 0, 1}}));
  EXPECT_EQ(ledger.missing_blocks(), 4u);
}

TEST(BlockLedger, CountsPastFourGibibytes) {
  // An embedding of [262144, 8448] bf16.
  const std::array<std::uint64_t, 1> sizes{4'429'185'024};
  BlockLedger ledger(sizes);

  EXPECT_EQ(ledger.missing_blocks(), 528u);
  EXPECT_EQ(block_length(sizes[0], 527), kBlockBytes);
  EXPECT_EQ(ledger.claim(0, 527), Claim::kYours);
  EXPECT_EQ(ledger.claim(0, 528), Claim::kNone);
}

TEST(BlockFrame, IsLittleEndianToTheByte) {
  BlockFrame frame{0x01020304, 0x05060708, 0x090a0b0c, 0x0d0e0f10, {}};
  frame.digest.bytes.fill(std::byte{0xee});

  const auto bytes = encode_block_frame(frame);

  const std::array<int, 17> expected{4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13, 0xee};
  EXPECT_TRUE(std::ranges::equal(expected, std::span(bytes).first(17), {}, {},
                                 [](std::byte byte) { return std::to_integer<int>(byte); }));
  EXPECT_EQ(parse_block_frame(bytes), frame);
}

}  // namespace
}  // namespace weft
