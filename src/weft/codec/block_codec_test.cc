#include "weft/codec/block_codec.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <zstd.h>

#include "weft/digest/digest.h"

namespace weft {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size_bytes, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// `base` with every element changed with this probability.
Bytes changed(const Bytes& base, std::size_t elem_bytes, double probability, unsigned seed) {
  std::mt19937 random(seed);
  std::bernoulli_distribution is_changed(probability);
  Bytes next = base;
  for (std::size_t at = 0; at < next.size(); at += elem_bytes) {
    if (is_changed(random)) next[at + random() % elem_bytes] ^= std::byte{1};
  }
  return next;
}

std::size_t differences(const Bytes& a, const Bytes& b, std::size_t elem_bytes) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < a.size(); at += elem_bytes) {
    count += std::memcmp(a.data() + at, b.data() + at, elem_bytes) != 0 ? 1 : 0;
  }
  return count;
}

void put(Bytes& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// So that what is under test is the rule behind the digest.
void sign(Bytes& payload) {
  const auto covered = std::span(payload).first(payload.size() - 32);
  std::ranges::copy(digest_of(covered).bytes, payload.data() + covered.size());
}

std::string why(const Result<SparsePatch>& patch) {
  return patch ? "parsed" : patch.error().message();
}

TEST(Encodings, AreNumberedAndNamed) {
  EXPECT_EQ(*parse_encoding(0), Encoding::kIdentity);
  EXPECT_EQ(*parse_encoding(1), Encoding::kZstd);
  EXPECT_EQ(*parse_encoding(2), Encoding::kSparse);
  EXPECT_EQ(encoding_name(Encoding::kSparse), "sparse");
  EXPECT_EQ(*parse_encoding(3), Encoding::kDelta);
  EXPECT_EQ(encoding_name(Encoding::kDelta), "delta");

  const auto unknown = parse_encoding(4);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(unknown.error().message().find("4"), std::string::npos);
}

TEST(Encodings, NoPayloadIsMuchLongerThanItsBlock) {
  EXPECT_EQ(max_payload_bytes(Encoding::kIdentity, 1000), 1000u);
  for (const auto encoding : {Encoding::kZstd, Encoding::kSparse, Encoding::kDelta}) {
    EXPECT_GE(max_payload_bytes(encoding, 8 << 20), 8u << 20);
    EXPECT_LE(max_payload_bytes(encoding, 8 << 20), (8u << 20) * 101 / 100);
  }
}

class ZstdSizes : public testing::TestWithParam<std::size_t> {};

TEST_P(ZstdSizes, ABlockComesBack) {
  Bytes block = random_bytes(GetParam(), 1);
  std::fill(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(block.size() / 2),
            std::byte{7});
  const Bytes payload = encode_zstd(block);
  Bytes decoded(block.size());

  ASSERT_TRUE(decode_zstd(payload, decoded));
  EXPECT_EQ(decoded, block);
  EXPECT_LE(payload.size(), max_payload_bytes(Encoding::kZstd, block.size()));
}

INSTANTIATE_TEST_SUITE_P(Sweep, ZstdSizes, testing::Values(1, 2, 100, 4096, 100'001, 1 << 20));

TEST(Zstd, EveryWrongByteIsAnErrorOrStaysInsideTheBlock) {
  const Bytes block(3000, std::byte{9});
  const Bytes payload = encode_zstd(block);
  for (std::size_t at = 0; at < payload.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Bytes wrong = payload;
      wrong[at] ^= static_cast<std::byte>(flip);
      Bytes decoded(block.size());  // ASan watches its ends
      const auto done = decode_zstd(wrong, decoded);
      EXPECT_TRUE(done || done.error().code() == ErrorCode::kCorrupt);
    }
  }
}

TEST(Zstd, EveryTruncationIsAnError) {
  const Bytes payload = encode_zstd(random_bytes(300, 2));
  Bytes decoded(300);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_FALSE(decode_zstd(std::span(payload).first(size), decoded)) << size;
  }
}

TEST(Zstd, BytesOrFramesBehindTheFrameAreRefused) {
  const Bytes block = random_bytes(300, 3);
  const Bytes empty_frame = encode_zstd({});
  Bytes decoded(block.size());

  Bytes longer = encode_zstd(block);
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_zstd(longer, decoded));
  Bytes two = encode_zstd(block);
  two.insert(two.end(), empty_frame.begin(), empty_frame.end());
  EXPECT_FALSE(decode_zstd(two, decoded));
}

TEST(Zstd, ABombIsRefusedBeforeItIsDecoded) {
  const Bytes payload = encode_zstd(Bytes(16 << 20));
  ASSERT_LT(payload.size(), 4096u);
  Bytes small(1000);

  const auto done = decode_zstd(payload, small);

  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message(), "zstd: the frame holds 16777216 bytes, the block has 1000");
  EXPECT_EQ(small, Bytes(1000));
}

TEST(Zstd, AFrameWithoutContentSizeIsRefused) {
  const Bytes block(1000, std::byte{5});
  Bytes payload(ZSTD_compressBound(block.size()));
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  payload.resize(
      ZSTD_compress2(context, payload.data(), payload.size(), block.data(), block.size()));
  ZSTD_freeCCtx(context);
  Bytes decoded(block.size());

  const auto done = decode_zstd(payload, decoded);

  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message(), "zstd: the frame does not say the size of its content");
}

TEST(Zstd, ASkippableFrameIsNoBlock) {
  Bytes payload(8);
  put(payload, 0, 0x184D2A50);
  EXPECT_FALSE(decode_zstd(payload, {}));
}

class SparseSweep : public testing::TestWithParam<std::tuple<std::size_t, std::size_t, double>> {};

TEST_P(SparseSweep, NextComesBackAndUndoBringsBaseBack) {
  const auto [elem_bytes, elements, probability] = GetParam();
  const Bytes base = random_bytes(elements * elem_bytes, 4);
  const Bytes next = changed(base, elem_bytes, probability, 5);

  const Bytes payload = encode_sparse(base, next, elem_bytes);
  const auto patch = parse_sparse(payload, base.size(), elem_bytes);
  ASSERT_TRUE(patch) << why(patch);
  EXPECT_EQ(patch->count, differences(base, next, elem_bytes));
  EXPECT_EQ(payload.size(), 72 + patch->count * (4 + elem_bytes));
  ASSERT_TRUE(check_sparse_base(*patch, base));

  Bytes block = base;
  Bytes undo(3);  // what it held is gone
  apply_sparse(*patch, block, &undo);
  EXPECT_EQ(block, next);
  ASSERT_EQ(undo.size(), patch->count * elem_bytes);
  for (std::size_t i = 0; i < patch->count; ++i) {
    std::memcpy(block.data() + patch->position(i) * elem_bytes, undo.data() + i * elem_bytes,
                elem_bytes);
  }
  EXPECT_EQ(block, base);
}

INSTANTIATE_TEST_SUITE_P(Sweep, SparseSweep,
                         testing::Combine(testing::Values(1, 2, 4, 8),
                                          testing::Values(1, 7, 32, 63, 64, 65, 1000, 10'001),
                                          testing::Values(0.0, 0.001, 0.01, 0.5, 1.0)));

TEST(Sparse, FloatsAreComparedAsBits) {
  const std::vector<float> base = {0.0F, 1.0F};
  const std::vector<float> next = {-0.0F, 1.0F};
  const Bytes payload =
      encode_sparse(std::as_bytes(std::span(base)), std::as_bytes(std::span(next)), 4);
  EXPECT_EQ(parse_sparse(payload, 8, 4)->count, 1u);
}

TEST(Sparse, APayloadMayBeginAtAnyAddress) {
  const Bytes base = random_bytes(4096, 6);
  const Bytes next = changed(base, 8, 0.1, 7);
  const Bytes payload = encode_sparse(base, next, 8);
  for (std::size_t shift = 1; shift < 8; ++shift) {
    Bytes shifted(shift);
    shifted.insert(shifted.end(), payload.begin(), payload.end());
    const auto patch = parse_sparse(std::span(shifted).subspan(shift), base.size(), 8);
    ASSERT_TRUE(patch) << why(patch);
    Bytes block = base;
    apply_sparse(*patch, block);
    EXPECT_EQ(block, next);
  }
}

TEST(Sparse, EveryWrongByteIsAnError) {
  const Bytes base = random_bytes(512, 8);
  const Bytes payload = encode_sparse(base, changed(base, 2, 0.03, 9), 2);
  for (std::size_t at = 0; at < payload.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Bytes wrong = payload;
      wrong[at] ^= static_cast<std::byte>(flip);
      const auto patch = parse_sparse(wrong, base.size(), 2);
      ASSERT_FALSE(patch) << at;
      EXPECT_EQ(patch.error().code(), ErrorCode::kCorrupt);
    }
  }
}

TEST(Sparse, EveryWrongByteUnderARightDigestIsAnErrorOrStaysInsideTheBlock) {
  const Bytes base = random_bytes(512, 8);
  const Bytes payload = encode_sparse(base, changed(base, 2, 0.03, 9), 2);
  for (std::size_t at = 0; at < payload.size() - 32; ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Bytes wrong = payload;
      wrong[at] ^= static_cast<std::byte>(flip);
      sign(wrong);
      const auto patch = parse_sparse(wrong, base.size(), 2);
      if (!patch) continue;
      Bytes block = base;  // ASan watches its ends
      static_cast<void>(check_sparse_base(*patch, block));
      apply_sparse(*patch, block);
    }
  }
}

TEST(Sparse, EveryTruncationAndEveryByteTooManyIsAnError) {
  const Bytes base = random_bytes(512, 10);
  Bytes payload = encode_sparse(base, changed(base, 2, 0.1, 11), 2);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_FALSE(parse_sparse(std::span(payload).first(size), base.size(), 2)) << size;
  }
  payload.push_back(std::byte{0});
  EXPECT_FALSE(parse_sparse(payload, base.size(), 2));
}

TEST(Sparse, ACountThatIsNotThePayloadsIsRefused) {
  const Bytes base = random_bytes(512, 12);
  Bytes payload = encode_sparse(base, changed(base, 2, 0.1, 13), 2);
  // With these 32-bit arithmetic on the length would wrap.
  for (const std::uint32_t count : {0xFFFFFFFFu, 0x80000000u, 0x2AAAAAAAu, 257u, 256u, 0u}) {
    put(payload, 0, count);
    sign(payload);
    const auto patch = parse_sparse(payload, base.size(), 2);
    EXPECT_FALSE(patch) << count;
  }
}

TEST(Sparse, PositionsAscendInsideTheBlock) {
  const Bytes base(64);
  Bytes next = base;
  next[10] = next[20] = std::byte{1};
  const Bytes payload = encode_sparse(base, next, 2);
  ASSERT_EQ(parse_sparse(payload, 64, 2)->position(1), 10u);
  for (const std::uint32_t second : {5u, 4u, 0u, 32u, 0xFFFFFFFFu}) {
    Bytes wrong = payload;
    put(wrong, 44, second);
    sign(wrong);
    EXPECT_EQ(why(parse_sparse(wrong, 64, 2)), "sparse: the positions do not ascend below 32");
  }
}

TEST(Sparse, TheSecondWordIsZero) {
  Bytes payload = encode_sparse(Bytes(64), Bytes(64), 2);
  put(payload, 4, 1);
  sign(payload);
  EXPECT_EQ(why(parse_sparse(payload, 64, 2)), "sparse: the second word is not zero");
}

TEST(Sparse, AnotherBaseIsNoticedWhereItMatters) {
  const Bytes base = random_bytes(512, 14);
  Bytes next = base;
  next[100] ^= std::byte{1};
  const Bytes payload = encode_sparse(base, next, 2);
  const auto patch = parse_sparse(payload, base.size(), 2);
  ASSERT_TRUE(patch);

  Bytes elsewhere = base;
  elsewhere[200] ^= std::byte{1};
  EXPECT_TRUE(check_sparse_base(*patch, elsewhere));
  const auto applied_before = check_sparse_base(*patch, next);
  ASSERT_FALSE(applied_before);
  EXPECT_EQ(applied_before.error().code(), ErrorCode::kConflict);
}

}  // namespace
}  // namespace weft
