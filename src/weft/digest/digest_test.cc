#include "weft/digest/digest.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

// The input of the official vectors.
std::vector<std::byte> counting_bytes(std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

std::span<const std::byte> block_of(std::span<const std::byte> bytes, std::uint64_t block) {
  const std::size_t begin = block * kBlockBytes;
  return bytes.subspan(begin, std::min<std::size_t>(kBlockBytes, bytes.size() - begin));
}

std::vector<Digest> block_digests(std::span<const std::byte> bytes) {
  std::vector<Digest> digests;
  for (std::uint64_t block = 0; block < block_count(bytes.size()); ++block) {
    digests.push_back(block_digest(bytes.size(), block, block_of(bytes, block)));
  }
  return digests;
}

struct Vector {
  std::size_t size_bytes;
  const char* hex;
};

// Source: test_vectors/test_vectors.json of the BLAKE3 repository, the first 32 bytes of `hash`.
TEST(Digest, AgreesWithTheOfficialVectors) {
  const Vector vectors[] = {
      {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
      {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
      {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
  };
  for (const Vector& vector : vectors) {
    const std::string text = digest_text(digest_of(counting_bytes(vector.size_bytes)));
    EXPECT_EQ(text, std::string("blake3:") + vector.hex) << vector.size_bytes;
  }
}

TEST(Digest, FedPieceByPieceIsTheSame) {
  const auto bytes = counting_bytes(10'000);
  Hasher hasher;
  for (std::size_t at = 0; at < bytes.size(); at += 997) {
    hasher.update(std::span(bytes).subspan(at, std::min<std::size_t>(997, bytes.size() - at)));
  }

  EXPECT_EQ(hasher.finish(), digest_of(bytes));
  EXPECT_EQ(Hasher(std::move(hasher)).finish(), digest_of(bytes));
}

TEST(Digest, TextParsesBackAndNothingElseDoes) {
  const Digest digest = digest_of(counting_bytes(3));
  const std::string text = digest_text(digest);

  EXPECT_EQ(try_parse_digest(text), digest);
  EXPECT_EQ(try_parse_digest(text.substr(1)), std::nullopt);
  EXPECT_EQ(try_parse_digest(text + "0"), std::nullopt);
  EXPECT_EQ(try_parse_digest("sha256:" + text.substr(7)), std::nullopt);
  std::string upper = text;
  std::ranges::transform(upper, upper.begin(), [](char c) { return c == 'a' ? 'A' : c; });
  EXPECT_EQ(try_parse_digest(upper), std::nullopt);
}

TEST(BlockDigests, MergeIntoThePlainDigest) {
  for (const std::size_t size_bytes : {0ul, 1ul, kBlockBytes - 1, kBlockBytes, kBlockBytes + 1,
                                       2 * kBlockBytes, 3 * kBlockBytes, 5 * kBlockBytes + 7}) {
    const auto bytes = counting_bytes(size_bytes);
    EXPECT_EQ(merge_block_digests(block_digests(bytes)), digest_of(bytes)) << size_bytes;
  }
}

TEST(BlockDigests, TheOnlyBlockHasThePlainDigest) {
  const auto bytes = counting_bytes(kBlockBytes);

  EXPECT_EQ(block_digest(bytes.size(), 0, bytes), digest_of(bytes));
  EXPECT_NE(block_digest(bytes.size() + 1, 0, bytes), digest_of(bytes));
}

TEST(BlockDigests, DependOnTheBlocksPlace) {
  const auto bytes = counting_bytes(1000);

  EXPECT_NE(block_digest(3 * kBlockBytes, 1, bytes), block_digest(3 * kBlockBytes, 2, bytes));
}

TEST(BlockHasher, FedPieceByPieceIsTheSame) {
  const auto bytes = counting_bytes(2 * kBlockBytes + 100'001);
  BlockHasher hasher(bytes.size(), 2);
  const auto block = block_of(bytes, 2);
  hasher.update(block.first(1));
  hasher.update(block.subspan(1, 65'537));
  hasher.update(block.subspan(65'538));

  EXPECT_EQ(hasher.finish(), block_digest(bytes.size(), 2, block));
}

}  // namespace
}  // namespace weft
