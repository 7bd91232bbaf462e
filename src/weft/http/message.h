#pragma once
// HTTP messages as plain values. Nothing here knows a socket.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/result.h"

namespace weft::http {

// Header fields in order. Names compare without case (RFC 9110 5.1).
class Headers {
 public:
  Headers() = default;
  Headers(std::initializer_list<std::pair<std::string, std::string>> fields) : fields_(fields) {}

  // The first field of that name.
  std::optional<std::string_view> try_get(std::string_view name) const;
  void add(std::string name, std::string value);
  // Replaces all fields of that name.
  void set(std::string name, std::string value);
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct Request {
  std::string method;  // "GET"
  std::string target;  // as sent, path and query: "/pause?mode=keep"
  Headers headers;
  std::string body;

  // Set by the server for handlers; a client leaves them alone.
  std::string path;  // percent-decoded, without a trailing slash: "/pause"
  std::vector<std::pair<std::string, std::string>> query;   // decoded, in order
  std::vector<std::pair<std::string, std::string>> params;  // what the route's {name}s matched

  // The last value given for `name`.
  std::optional<std::string_view> try_query(std::string_view name) const;
  // Requires: the route has a {name}.
  std::string_view param(std::string_view name) const;
};

struct Response {
  int status = 200;
  Headers headers;
  std::string body;
};

Response json_response(std::string body, int status = 200);
// {"error": {"message", "type", "param", "code"}}, as vLLM answers, with Retry-After on 503
// and WWW-Authenticate: Bearer on 401.
Response error_response(const Error& error);
// The other way: the Error that a peer's response with a status of 400 or more carries. Understands
// "error.message", a string "error" and "detail".
Error error_of_response(const Response& response);

struct Address {
  std::string host;  // of IPv6 without brackets
  std::uint16_t port = 0;
};
// "HOST", "HOST:PORT", "[IPv6]:PORT". Errors: kInvalidArgument, without the text.
Result<Address> parse_address(std::string_view text, std::uint16_t default_port);

inline constexpr std::string_view kUnixPrefix = "unix:";
// Source: sockaddr_un in unix(7), whose path ends with a zero.
inline constexpr std::size_t kMaxSocketPathBytes = 107;

// An absolute http or https URL, or "unix:PATH": http over the UNIX socket at PATH.
struct Url {
  std::string scheme;
  std::string host;
  std::uint16_t port = 80;
  std::string socket_path{};  // "" but for a UNIX socket
  std::string
      path;  // "" or starts with '/', never ends with one; clients put it before every target

  // Errors: kInvalidArgument naming the text.
  static Result<Url> parse(std::string_view text);
  std::string text() const;
  std::string authority() const;  // host:port, as in a Host header
};

std::string percent_encode(std::string_view text);
// Errors: kInvalidArgument for a bad escape, or for what is then no UTF-8.
Result<std::string> percent_decode(std::string_view text);

}  // namespace weft::http
