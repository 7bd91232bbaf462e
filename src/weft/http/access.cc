#include "weft/http/access.h"

#include "weft/http/wire.h"

namespace weft::http {
namespace {

// Takes as long as `given` is, whatever `key` is. Requires: a key that is not empty.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

// The token of `Authorization: Bearer TOKEN`, or "".
std::string_view bearer_token(const Request& request) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view field = request.headers.try_get("Authorization").value_or("");
  if (!equal_ignoring_case(field.substr(0, kScheme.size()), kScheme)) return {};
  const std::string_view token = field.substr(kScheme.size());
  return token.substr(std::min(token.find_first_not_of(' '), token.size()));
}

// "" where none is needed.
std::string_view key_of(Access access, const ServerKeys& keys) {
  switch (access) {
    case Access::kOpen:
      return {};
    case Access::kApi:
      return keys.api_key;
    case Access::kRead:
      return keys.read_key;
    case Access::kAdmin:
      break;
  }
  return keys.admin_key;
}

bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

}  // namespace

bool has_access(const Request& request, Access access, const ServerKeys& keys) {
  const std::string_view key = key_of(access, keys);
  if (key.empty()) return true;
  const std::string_view token = bearer_token(request);
  const bool right = equal_in_constant_time(token, key);
  const bool admin = !keys.admin_key.empty() && equal_in_constant_time(token, keys.admin_key);
  return right || admin;
}

bool is_exposed(const ServerOptions& options) {
  if (!options.keys.admin_key.empty() || options.admin_listen.starts_with(kUnixPrefix))
    return false;
  if (options.admin_listen.empty()) return !is_loopback(options.host);
  const auto admin = parse_address(options.admin_listen, 0);
  return !(admin && is_loopback(admin->host));
}

}  // namespace weft::http
