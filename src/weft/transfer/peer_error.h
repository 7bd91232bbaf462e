#pragma once
// What a server's refusal means to a client of /weft/v1.

#include "weft/base/error.h"
#include "weft/http/message.h"

namespace weft {

// http::error_of_response, but for a 404 of a server that has no such routes at all.
Error peer_error(const http::Response& response);

}  // namespace weft
