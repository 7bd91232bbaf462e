#include "weft/http/router.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/http/wire.h"

namespace weft::http {
namespace {

using Segments = std::vector<std::string>;

bool is_placeholder(std::string_view segment) {
  return segment.starts_with('{');
}

// "/a//b" has an empty segment in the middle; one '/' at the end makes none.
std::vector<std::string_view> split_path(std::string_view path) {
  std::vector<std::string_view> segments;
  while (path.size() > 1) {
    const std::size_t end = std::min(path.find('/', 1), path.size());
    segments.push_back(path.substr(1, end - 1));
    path.remove_prefix(end);
  }
  return segments;
}

// What both patterns of a pair that match the same requests have in common.
std::string shape_of(const Segments& segments) {
  std::string shape;
  for (const auto& segment : segments) {
    shape.append("/").append(is_placeholder(segment) ? "{}" : segment);
  }
  return shape;
}

// Literal segments first, so that the first row that matches is the right one.
bool preferred(const Segments& a, const Segments& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (is_placeholder(a[i]) != is_placeholder(b[i])) return is_placeholder(b[i]);
  }
  return false;
}

bool matches(const Segments& pattern, const Segments& path) {
  return std::equal(pattern.begin(), pattern.end(), path.begin(), path.end(),
                    [](const auto& p, const auto& s) { return is_placeholder(p) || p == s; });
}

bool answers(const Route& route, std::string_view method) {
  return route.method == method || (method == "HEAD" && route.method == "GET");
}

// `+` is a space in a query (as forms send it).
Result<std::string> decode_query(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return percent_decode(spaced);
}

Result<void> parse_query(std::string_view text, Request& request) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    WEFT_TRY(auto name, decode_query(pair.substr(0, equals)));
    WEFT_TRY(auto value, decode_query(pair.substr(std::min(pair.size(), equals + 1))));
    request.query.emplace_back(std::move(name), std::move(value));
  }
  return {};
}

// The decoded path; nullopt for one that names nothing: empty, "." or ".." segments.
Result<std::optional<Segments>> parse_path(std::string_view path, Request& request) {
  Segments segments;
  if (!path.starts_with('/')) return std::optional<Segments>();
  for (const std::string_view raw : split_path(path)) {
    WEFT_TRY(auto segment, percent_decode(raw));
    request.path.append("/").append(segment);
    segments.push_back(std::move(segment));
  }
  if (request.path.empty()) request.path = "/";
  for (const auto& segment : segments) {
    if (segment.empty() || segment == "." || segment == "..") return std::optional<Segments>();
  }
  return std::optional(std::move(segments));
}

}  // namespace

Result<Router> Router::create(std::vector<Route> routes) {
  Router router;
  for (Route& route : routes) {
    const std::string name = fmt::format("route {} {}", route.method, route.pattern);
    const auto bad = [&](std::string_view why) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", name, why));
    };
    if (!route.pattern.starts_with('/')) return bad("the pattern must start with '/'");
    if ((route.handler != nullptr) == (route.bulk_handler != nullptr)) {
      return bad("expected exactly one of handler and bulk_handler");
    }
    Segments segments;
    for (const auto segment : split_path(route.pattern)) segments.emplace_back(segment);
    for (const Row& other : router.rows_) {
      if (other.route.method == route.method && shape_of(other.segments) == shape_of(segments)) {
        return bad(fmt::format("matches the same requests as {}", other.route.pattern));
      }
    }
    router.rows_.push_back({std::move(route), std::move(segments)});
  }
  std::stable_sort(router.rows_.begin(), router.rows_.end(), [](const Row& a, const Row& b) {
    return a.segments.size() != b.segments.size() ? a.segments.size() < b.segments.size()
                                                  : preferred(a.segments, b.segments);
  });
  return router;
}

Result<Router::Match> Router::match(Request& request) const {
  std::string_view target = request.target;
  for (const std::string_view scheme : {"http://", "https://"}) {  // absolute form, RFC 9112 3.2.2
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(std::min(target.find('/', scheme.size()), target.size()));
  }
  const std::size_t path_end = std::min(target.find('?'), target.size());
  Match match;
  WEFT_TRY(const auto path, parse_path(target.substr(0, path_end), request));
  WEFT_TRY_VOID(parse_query(target.substr(std::min(target.size(), path_end + 1)), request));
  if (!path) return match;
  for (const Row& row : rows_) {
    if (!matches(row.segments, *path)) continue;
    if (!answers(row.route, request.method)) {
      match.allow += (match.allow.empty() ? "" : ", ") + row.route.method;
      if (row.route.method == "GET") match.allow += ", HEAD";
      continue;
    }
    match.route = &row.route;
    for (std::size_t i = 0; i < path->size(); ++i) {
      const std::string& name = row.segments[i];
      if (!is_placeholder(name)) continue;
      request.params.emplace_back(name.substr(1, name.size() - 2), (*path)[i]);
    }
    break;
  }
  return match;
}

}  // namespace weft::http
