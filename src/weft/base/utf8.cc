#include "weft/base/utf8.h"

namespace weft {
namespace {

struct Sequence {
  std::size_t bytes = 0;                    // 0: no sequence begins so
  unsigned char least = 0x80, most = 0xBF;  // of the second byte; the others are 80 to BF
};

// Source: RFC 3629, section 4.
Sequence sequence_of(unsigned char lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

std::size_t utf8_sequence_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const Sequence sequence = sequence_of(static_cast<unsigned char>(text.front()));
  if (sequence.bytes > text.size()) return 0;
  for (std::size_t i = 1; i < sequence.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool fits =
        i == 1 ? sequence.least <= byte && byte <= sequence.most : 0x80 <= byte && byte <= 0xBF;
    if (!fits) return 0;
  }
  return sequence.bytes;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace weft
