#include "weft/http/message.h"

#include <algorithm>
#include <charconv>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/base/check.h"
#include "weft/base/utf8.h"
#include "weft/http/wire.h"

namespace weft::http {
namespace {

namespace json = boost::json;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_unreserved(char c) {  // RFC 3986 2.3
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

// The sentence in a peer's error body, or nothing.
std::optional<std::string> try_error_message(const json::value& body) {
  const auto* object = body.if_object();
  if (object == nullptr) return std::nullopt;
  if (const auto* error = object->if_contains("error")) {
    if (const auto* text = error->if_string()) return std::string(*text);
    if (const auto* inner = error->if_object()) {
      const auto* message = inner->if_contains("message");
      if (message != nullptr && message->is_string()) return std::string(message->get_string());
    }
  }
  if (const auto* detail = object->if_contains("detail")) {
    if (const auto* text = detail->if_string()) return std::string(*text);
    return json::serialize(*detail);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string_view> Headers::try_get(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return std::nullopt;
}

void Headers::add(std::string name, std::string value) {
  fields_.emplace_back(std::move(name), std::move(value));
}

void Headers::set(std::string name, std::string value) {
  std::erase_if(fields_, [&](const auto& field) { return equal_ignoring_case(field.first, name); });
  add(std::move(name), std::move(value));
}

std::optional<std::string_view> Request::try_query(std::string_view name) const {
  const auto found = std::find_if(query.rbegin(), query.rend(),
                                  [&](const auto& field) { return field.first == name; });
  if (found == query.rend()) return std::nullopt;
  return found->second;
}

std::string_view Request::param(std::string_view name) const {
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const auto& field) { return field.first == name; });
  WEFT_CHECK(found != params.end());
  return found->second;
}

Response json_response(std::string body, int status) {
  Response response;
  response.status = status;
  response.headers.add("Content-Type", "application/json");
  response.body = std::move(body);
  return response;
}

Response error_response(const Error& error) {
  const ErrorTraits& traits = error_traits(error.code());
  json::object inner;
  inner["message"] = error.message();
  inner["type"] = traits.http_type;
  inner["param"] = nullptr;
  if (!error.param().empty()) inner["param"] = error.param();
  inner["code"] = traits.http_status;
  json::object body;
  body["error"] = std::move(inner);
  Response response = json_response(json::serialize(body), traits.http_status);
  if (traits.http_status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  if (traits.http_status == 503) response.headers.add("Retry-After", "1");
  return response;
}

Error error_of_response(const Response& response) {
  constexpr std::size_t kShownBytes = 300;
  const ErrorCode code = code_of_http_status(response.status);
  boost::system::error_code failed;
  const json::value body = json::parse(response.body, failed);
  if (!failed) {
    if (auto message = try_error_message(body)) return Error(code, std::move(*message));
  }
  return Error(code, fmt::format("HTTP status {}: {}", response.status,
                                 response.body.substr(0, kShownBytes)));
}

Result<Address> parse_address(std::string_view text, std::uint16_t default_port) {
  const auto bad = [](const char* why) { return Error(ErrorCode::kInvalidArgument, why); };
  std::string_view host = text;
  std::string_view after = text;
  if (host.starts_with('[')) {  // an IPv6 address
    const std::size_t close = host.find(']');
    if (close == std::string_view::npos) return bad("`[` without `]`");
    after = host.substr(close + 1);
    host = host.substr(1, close - 1);
  } else {
    after = host.substr(std::min(host.find(':'), host.size()));
    host = host.substr(0, host.size() - after.size());
  }
  if (host.empty()) return bad("the host is missing");
  Address address{std::string(host), default_port};
  if (after.empty()) return address;
  const char* const end = after.data() + after.size();
  const auto [stop, failed] = std::from_chars(after.data() + 1, end, address.port);
  if (after.front() == ':' && failed == std::errc() && stop == end) return address;
  return bad("the port must be 1 to 65535");
}

Result<Url> Url::parse(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("`{}` is no http URL: {}", text, why));
  };
  if (text.starts_with(kUnixPrefix)) {
    Url url;
    url.scheme = "http";
    url.host = "localhost";
    url.socket_path = text.substr(kUnixPrefix.size());
    if (!url.socket_path.empty() && url.socket_path.size() <= kMaxSocketPathBytes) return url;
    return bad(fmt::format("a socket's path has 1 to {} bytes", kMaxSocketPathBytes));
  }
  const std::size_t scheme_end = text.find("://");
  if (scheme_end == std::string_view::npos) return bad("expected http://host:port");
  Url url;
  url.scheme = text.substr(0, scheme_end);
  std::transform(url.scheme.begin(), url.scheme.end(), url.scheme.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (url.scheme == "https") url.port = 443;
  if (url.scheme != "http" && url.scheme != "https") return bad("the scheme must be http or https");
  std::string_view rest = text.substr(scheme_end + 3);
  if (rest.find_first_of("?#@ \t\r\n") != std::string_view::npos) {
    return bad("no query, fragment, user or space is allowed");
  }
  const std::size_t path_begin = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(path_begin);
  while (url.path.ends_with('/')) url.path.pop_back();
  const auto at = parse_address(rest.substr(0, path_begin), url.port);
  if (!at) return bad(at.error().message());
  if (at->port == 0) return bad("the port must be 1 to 65535");
  url.host = at->host;
  url.port = at->port;
  return url;
}

std::string Url::text() const {
  if (!socket_path.empty()) return fmt::format("{}{}", kUnixPrefix, socket_path);
  return fmt::format("{}://{}{}", scheme, authority(), path);
}

std::string Url::authority() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);
}

std::string percent_encode(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (is_unreserved(c)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("bad percent escape in `{}`", percent_encode(text)));
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (!is_utf8(out)) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("`{}` is no UTF-8", percent_encode(out)));
  }
  return out;
}

}  // namespace weft::http
