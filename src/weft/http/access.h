#pragma once
// Who may use a route, and who gets as far as asking.

#include "weft/http/message.h"
#include "weft/http/server.h"

namespace weft::http {

// Whether `request` carries a key that opens `access`. The time it takes does not tell how much of
// a wrong key is right.
bool has_access(const Request& request, Access access, const ServerKeys& keys);

// Whether a server listens beyond this machine without an admin key: whoever reaches it can then
// replace the weights.
bool is_exposed(const ServerOptions& options);

}  // namespace weft::http
