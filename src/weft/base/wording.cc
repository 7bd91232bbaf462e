#include "weft/base/wording.h"

#include <fmt/format.h>

#include "weft/base/utf8.h"

namespace weft {
namespace {

// C0, DEL, and C1 as UTF-8 has it: U+0080 to U+009F.
bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence.front());
  if (sequence.size() == 1) return first < ' ' || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(sequence[1]) < 0xA0;
}

}  // namespace

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    const std::string_view sequence = text.substr(0, bytes == 0 ? 1 : bytes);
    if (bytes != 0 && !is_control(sequence)) {
      line += sequence;
    } else {
      for (const char byte : sequence)
        line += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(sequence.size());
  }
  return line;
}

}  // namespace weft
