#pragma once
// Strict JSON in, canonical JSON out, over Boost.JSON. Include <boost/json.hpp> in the .cc that
// looks into a value.

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

#include "weft/base/result.h"

namespace weft {

// The deepest nesting that is parsed.
inline constexpr std::uint32_t kMaxJsonDepth = 64;

// Errors: kInvalidArgument with the byte offset and reason; also for duplicate keys, which readers
// disagree about, and for depth over kMaxJsonDepth.
Result<boost::json::value> parse_json(std::string_view text);

// A member of a peer's answer; "" where it is absent or no string.
std::string string_member(const boost::json::object& object, std::string_view name);

// RFC 8785 for values without floating-point numbers: members sorted by the UTF-16 code units of
// their names, no white space, shortest escapes. Requires: no double in `value`.
std::string canonical_json(const boost::json::value& value);

}  // namespace weft
