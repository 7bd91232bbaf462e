#include "weft/digest/hash_helper.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

std::vector<std::byte> some_bytes(std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>((state = state * 747'796'405u + 1) >> 24);
  return bytes;
}

// Of all blocks of `bytes`, brought in steps of `step_bytes`.
Digest shared_digest(HashHelper& helper, std::span<const std::byte> bytes, std::size_t step_bytes) {
  std::vector<Digest> values;
  for (std::uint64_t block = 0; block < block_count(bytes.size()); ++block) {
    const std::size_t begin = block * kBlockBytes;
    const auto part =
        bytes.subspan(begin, std::min<std::size_t>(kBlockBytes, bytes.size() - begin));
    SharedBlockHasher hasher(helper, bytes.size(), block, part);
    for (std::size_t left = part.size(); left > 0;) {
      const std::size_t step = std::min(left, step_bytes);
      hasher.arrived(step);
      left -= step;
    }
    values.push_back(hasher.finish());
    EXPECT_EQ(values.back(), block_digest(bytes.size(), block, part)) << block;
  }
  return merge_block_digests(values);
}

TEST(SharedBlockHasher, GivesTheValuesOfTheBlocks) {
  HashHelper helper;
  for (const std::size_t size : {1ul, 1023ul, 1ul << 20, (1ul << 20) + 1, (3ul << 20) + 77,
                                 8ul << 20, (8ul << 20) + 5, (19ul << 20) + 1000}) {
    const auto bytes = some_bytes(size);
    for (const std::size_t step : {1ul << 30, 1ul << 20, 300'001ul}) {
      EXPECT_EQ(shared_digest(helper, bytes, step), digest_of(bytes)) << size << " by " << step;
    }
  }
}

TEST(SharedBlockHasher, ManyShareOneHelper) {
  HashHelper helper;
  const auto bytes = some_bytes(9u << 20);
  const Digest expected = digest_of(bytes);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(shared_digest(helper, bytes, 100'000 * (i + 1)), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Nothing reads the bytes of a block that was given up: they may be overwritten or freed at once.
TEST(SharedBlockHasher, GivenUpHalfwayItLetsGoOfTheMemory) {
  HashHelper helper;
  for (std::size_t arrived = 0; arrived < 8; ++arrived) {
    std::optional<std::vector<std::byte>> bytes = some_bytes(8u << 20);
    {
      SharedBlockHasher hasher(helper, bytes->size(), 0, *bytes);
      hasher.arrived(arrived << 20);
    }
    bytes.reset();
  }
  const auto bytes = some_bytes(8u << 20);
  EXPECT_EQ(shared_digest(helper, bytes, 1u << 20), digest_of(bytes));
}

}  // namespace
}  // namespace weft
