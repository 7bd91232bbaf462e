// Whatever parses and has no floating-point number is written canonically and reads back the same.

#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "weft/base/check.h"
#include "weft/format/json.h"

namespace {

bool has_double(const boost::json::value& value) {
  if (const auto* array = value.if_array()) {
    for (const auto& item : *array) {
      if (has_double(item)) return true;
    }
  }
  if (const auto* object = value.if_object()) {
    for (const auto& member : *object) {
      if (has_double(member.value())) return true;
    }
  }
  return value.is_double();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto value = weft::parse_json({reinterpret_cast<const char*>(data), size});
  if (!value || has_double(*value)) return 0;
  const std::string canonical = weft::canonical_json(*value);
  const auto again = weft::parse_json(canonical);
  WEFT_CHECK(again.has_value());
  WEFT_CHECK(weft::canonical_json(*again) == canonical);
  return 0;
}
