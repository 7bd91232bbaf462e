// The vectors of docs/formats/delta_vectors.txt.

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "weft/codec/delta_codec.h"

namespace weft {
namespace {

using Bytes = std::vector<std::byte>;

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  if (text == "-") return bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(const Bytes& bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return text.empty() ? "-" : text;
}

TEST(DeltaVectors, AreMadeAndRead) {
  const char* const root = std::getenv("WEFT_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  std::ifstream file(std::string(root) + "/docs/formats/delta_vectors.txt");
  ASSERT_TRUE(file);
  int vectors = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    std::string name, base_hex, block_hex, payload_hex;
    int kind_number = 0;
    ASSERT_TRUE(fields >> name >> kind_number >> base_hex >> block_hex >> payload_hex) << line;
    SCOPED_TRACE(name);
    ++vectors;
    const auto kind = static_cast<ElemKind>(kind_number);
    const Bytes base = from_hex(base_hex);
    Bytes decoded(base.size());
    const auto done = decode_delta(from_hex(payload_hex), base, kind, decoded);
    if (block_hex == "!") {
      EXPECT_FALSE(done);
      continue;
    }
    const bool is_plain = payload_hex.substr(2, 2) == "04";
    const DeltaGoal goal = is_plain ? DeltaGoal::kFast : DeltaGoal::kSmall;
    EXPECT_EQ(to_hex(encode_delta(base, from_hex(block_hex), kind, goal)), payload_hex);
    EXPECT_TRUE(done) << done.error().message();
    EXPECT_EQ(to_hex(decoded), block_hex);
  }
  EXPECT_GT(vectors, 20);
}

}  // namespace
}  // namespace weft
