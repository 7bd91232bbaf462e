#include "weft/http/representation.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "weft/http/wire.h"

namespace weft::http {
namespace {

constexpr std::string_view kSpace = " \t";

std::string_view skip(std::string_view text, std::string_view characters) {
  return text.substr(std::min(text.find_first_not_of(characters), text.size()));
}

// An entity tag cut off the front of a list; "" at its end or where it is malformed.
std::string_view take_tag(std::string_view& list) {
  list = skip(list, " \t,");
  const std::size_t open = list.starts_with("W/") ? 2 : 0;
  if (list.size() <= open || list[open] != '"') return {};
  const std::size_t close = list.find('"', open + 1);
  if (close == std::string_view::npos) return {};
  const std::string_view tag = list.substr(0, close + 1);
  list.remove_prefix(tag.size());
  return tag;
}

bool same_tag(std::string_view a, std::string_view b, Comparison comparison) {
  const auto opaque = [](std::string_view tag) {
    return tag.starts_with("W/") ? tag.substr(2) : tag;
  };
  if (comparison == Comparison::kWeak) return opaque(a) == opaque(b);
  return a == b && !a.starts_with("W/");
}

bool lists(std::string_view list, std::string_view etag, Comparison comparison) {
  if (skip(list, kSpace) == "*") return true;
  for (auto tag = take_tag(list); !tag.empty(); tag = take_tag(list)) {
    if (same_tag(tag, etag, comparison)) return true;
  }
  return false;
}

// Digits cut off the front of `text`; what is too large for the type becomes its largest.
std::optional<std::uint64_t> try_take_number(std::string_view& text) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::size_t size = std::min(text.find_first_not_of("0123456789"), text.size());
  if (size == 0) return std::nullopt;
  std::uint64_t value = 0;
  for (const char digit : text.substr(0, size)) {
    const auto unit = static_cast<std::uint64_t>(digit - '0');
    value = value > (kMost - unit) / 10 ? kMost : value * 10 + unit;
  }
  text.remove_prefix(size);
  return value;
}

// first-last with last included (RFC 9110 14.1.1); without `first`, the last `last` bytes.
struct ByteRange {
  std::optional<std::uint64_t> first;
  std::optional<std::uint64_t> last;
};

// nullopt for several ranges, another unit, or what is malformed: the field is ignored then.
std::optional<ByteRange> try_parse_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes=";
  if (!equal_ignoring_case(text.substr(0, kUnit.size()), kUnit)) return std::nullopt;
  text = skip(text.substr(kUnit.size()), kSpace);
  ByteRange range;
  range.first = try_take_number(text);
  if (!text.starts_with('-')) return std::nullopt;
  text.remove_prefix(1);
  range.last = try_take_number(text);
  if (!skip(text, kSpace).empty() || (!range.first && !range.last)) return std::nullopt;
  if (range.first && range.last && *range.last < *range.first) return std::nullopt;
  return range;
}

// The range that a GET asks for, where it is to be honoured (RFC 9110 13.1.5, 14.2).
std::optional<ByteRange> try_wanted_range(const Request& request, std::string_view etag) {
  const auto field = request.headers.try_get("Range");
  if (!field || request.method != "GET") return std::nullopt;
  const auto condition = request.headers.try_get("If-Range");
  if (condition && !same_tag(*condition, etag, Comparison::kStrong)) return std::nullopt;
  return try_parse_range(*field);
}

Selection refusal(Error error) {
  Selection selection;
  selection.head = error_response(error);
  selection.head.headers.set("Cache-Control", "no-store");
  return selection;
}

Selection whole(const Representation& representation) {
  Selection selection;
  Headers& headers = selection.head.headers;
  headers.add("Content-Type", representation.content_type);
  headers.add("ETag", representation.etag);
  headers.add("Accept-Ranges", "bytes");
  if (!representation.cache_control.empty()) {
    headers.add("Cache-Control", representation.cache_control);
  }
  selection.size_bytes = representation.size_bytes;
  return selection;
}

Selection part(const Representation& representation, const ByteRange& range) {
  const std::uint64_t size = representation.size_bytes;
  std::uint64_t first = 0;
  std::uint64_t last = size == 0 ? 0 : size - 1;
  if (range.first) {
    first = *range.first;
    last = std::min(last, range.last.value_or(last));
  } else {
    first = size - std::min(size, *range.last);
  }
  if (first >= size) {  // RFC 9110 15.5.17
    auto selection = refusal(
        Error(ErrorCode::kRangeInvalid, fmt::format("no such range: there are {} bytes", size)));
    selection.head.headers.add("Content-Range", fmt::format("bytes */{}", size));
    return selection;
  }
  Selection selection = whole(representation);
  selection.head.status = 206;
  selection.head.headers.add("Content-Range", fmt::format("bytes {}-{}/{}", first, last, size));
  selection.offset_bytes = first;
  selection.size_bytes = last - first + 1;
  return selection;
}

}  // namespace

// In the order of RFC 9110 13.2.2.
Selection select(const Request& request, const Representation& representation) {
  const std::string& etag = representation.etag;
  if (!try_match(request.headers, "If-Match", etag, Comparison::kStrong).value_or(true)) {
    return refusal(Error(ErrorCode::kPreconditionFailed, fmt::format("this is {}", etag)));
  }
  if (try_match(request.headers, "If-None-Match", etag, Comparison::kWeak).value_or(false)) {
    Selection selection;  // RFC 9110 15.4.5: what a cache updates its copy with
    selection.head.status = 304;
    selection.head.headers.add("ETag", etag);
    if (!representation.cache_control.empty()) {
      selection.head.headers.add("Cache-Control", representation.cache_control);
    }
    return selection;
  }
  const auto range = try_wanted_range(request, etag);
  return range ? part(representation, *range) : whole(representation);
}

std::string etag_of(std::string_view id) {
  return fmt::format("\"{}\"", id);
}

std::optional<bool> try_match(const Headers& headers, std::string_view name, std::string_view etag,
                              Comparison comparison) {
  std::optional<bool> matched;
  for (const auto& [key, value] : headers) {
    if (!equal_ignoring_case(key, name)) continue;
    const bool listed = !etag.empty() && lists(value, etag, comparison);
    matched = matched.value_or(false) || listed;
  }
  return matched;
}

}  // namespace weft::http
