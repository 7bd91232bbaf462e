#include "weft/transfer/peer_error.h"

namespace weft {

Error peer_error(const http::Response& response) {
  // Whoever has /weft/v1 says in an "error" what was not found; docs/protocol.md.
  const bool is_foreign = response.status == error_traits(ErrorCode::kNotFound).http_status &&
                          response.body.find("\"error\"") == std::string::npos;
  if (!is_foreign) return http::error_of_response(response);
  return {ErrorCode::kNotFound, "there is no /weft/v1 below this URL: is it a weft server's?"};
}

}  // namespace weft
