#pragma once
// Conditional and range requests for one representation of a resource (RFC 9110, 13 and 14): what
// to answer, as pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/http/message.h"

namespace weft::http {

// Bytes that can be sent under a name. There is no modification date: dates in requests are
// ignored, as RFC 9110 13.1.3, 13.1.4 and 13.1.5 ask for.
struct Representation {
  std::string etag;  // with its quotes; strong: it changes when a byte does
  std::uint64_t size_bytes = 0;
  std::string content_type = "application/octet-stream";
  std::string cache_control;
};

// For resources that never change, whoever asks.
inline constexpr std::string_view kImmutable = "public, max-age=31536000, immutable, no-transform";

// What to answer to a request.
struct Selection {
  Response head;                   // status and fields; a body only with an error
  std::uint64_t offset_bytes = 0;  // of the body to send, in the representation
  std::uint64_t size_bytes = 0;    // of it; also for HEAD, whose body the server leaves out
};

// 200, 206 (one range; several are answered with the whole, RFC 9110 14.2), 304, 412 or 416.
Selection select(const Request& request, const Representation& representation);

// `"id"`: an entity tag. Requires: no quotes and no control characters in `id`.
std::string etag_of(std::string_view id);

enum class Comparison { kStrong, kWeak };  // RFC 9110 8.8.3.2
// Whether the fields called `name` (If-Match, If-None-Match) list `etag`, or are `*`. An empty
// `etag` stands for a resource that does not exist: nothing matches it. nullopt: no such field.
std::optional<bool> try_match(const Headers& headers, std::string_view name, std::string_view etag,
                              Comparison comparison);

}  // namespace weft::http
