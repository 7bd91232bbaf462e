#pragma once
// Who may use a route.

#include "weft/http/message.h"
#include "weft/http/server.h"

namespace weft::http {

// Whether `request` carries a key that opens `access`. The time it takes does not tell how much of
// a wrong key is right.
bool has_access(const Request& request, Access access, const ServerKeys& keys);

}  // namespace weft::http
