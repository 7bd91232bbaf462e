#pragma once
// The routes of the data plane that take uploads in: PUT /weft/v1/weights, /weft/v1/uploads...,
// /weft/v1/status. docs/protocol.md.

#include <memory>
#include <string>
#include <vector>

#include "weft/http/server.h"
#include "weft/transfer/upload_host.h"

namespace weft {

// Who sends a request: Weft-Session, or "anonymous". Errors: kInvalidArgument unless it is 1 to 256
// printable ASCII characters.
Result<std::string> owner_of(const http::Request& request);

// The handlers share `host`, so that a request under way keeps it.
std::vector<http::Route> upload_routes(std::shared_ptr<UploadHost> host);

}  // namespace weft
