// What parses as a manifest is exactly what would be written for it.

#include <cstdint>
#include <string_view>

#include "weft/base/check.h"
#include "weft/format/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto manifest = weft::parse_manifest(text);
  if (manifest) WEFT_CHECK(weft::manifest_json(*manifest) == text);
  return 0;
}
