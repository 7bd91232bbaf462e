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

}  // namespace

bool has_access(const Request& request, Access access, const ServerKeys& keys) {
  if (access == Access::kOpen) return true;
  const std::string_view key = access == Access::kRead ? keys.read_key : keys.admin_key;
  if (key.empty()) return true;
  const std::string_view token = bearer_token(request);
  const bool right = equal_in_constant_time(token, key);
  const bool admin = !keys.admin_key.empty() && equal_in_constant_time(token, keys.admin_key);
  return right || admin;
}

bool is_exposed(const ServerOptions& options) {
  const std::string& host = options.host;
  const bool is_loopback = host.starts_with("127.") || host == "::1" || host == "localhost";
  return !is_loopback && options.keys.admin_key.empty();
}

}  // namespace weft::http
