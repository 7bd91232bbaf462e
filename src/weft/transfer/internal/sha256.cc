#include "weft/transfer/internal/sha256.h"

#include <array>

#include <fmt/core.h>
#include <openssl/evp.h>

#include "weft/base/check.h"

namespace weft::internal {

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, 32> digest{};
  // Fails only when OpenSSL has no SHA-256 or no memory for its context.
  WEFT_CHECK(
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace weft::internal
