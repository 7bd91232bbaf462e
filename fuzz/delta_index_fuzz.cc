// What parses as an index is exactly what would be written for it, and its payloads lie in its
// packs. The first byte chooses whether the digest at the end, which cannot be guessed, and the
// counts are made right first.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "weft/base/check.h"
#include "weft/format/delta_index.h"

namespace {

void try_parse(const std::string& text) {
  const auto index = weft::parse_delta_index(std::as_bytes(std::span(text)));
  if (!index) return;
  WEFT_CHECK(weft::encode_delta_index(*index) == text);
  const auto places = weft::delta_payload_places(*index);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& pack = index->packs.at(places[i].pack);
    WEFT_CHECK(std::uint64_t{places[i].offset_bytes} + index->blocks[i].payload_bytes <=
               pack.size_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  try_parse(text);
  if (text.empty()) return 0;
  const bool with_magic = (data[0] & 1) != 0;
  text.erase(0, 1);
  constexpr std::string_view kBeginning("weft-dix\1\0\0\0", 12);
  if (with_magic && text.size() >= kBeginning.size()) {
    text.replace(0, kBeginning.size(), kBeginning);
  }
  for (const std::byte b : weft::digest_of(std::as_bytes(std::span(text))).bytes) {
    text += static_cast<char>(b);
  }
  try_parse(text);
  return 0;
}
