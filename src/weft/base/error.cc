#include "weft/base/error.h"

#include <array>
#include <cstddef>

namespace weft {
namespace {

constexpr std::array<ErrorTraits, 17> kTraits = {{
    {"invalid_argument", 400, 2, "BadRequestError"},
    {"unauthenticated", 401, 3, "AuthenticationError"},
    {"forbidden", 403, 3, "PermissionDeniedError"},
    {"not_found", 404, 4, "NotFoundError"},
    {"method_not_allowed", 405, 2, "MethodNotAllowedError"},
    {"conflict", 409, 5, "ConflictError"},
    {"precondition_failed", 412, 5, "PreconditionFailedError"},
    {"too_large", 413, 2, "RequestTooLargeError"},
    {"range_invalid", 416, 2, "RangeNotSatisfiableError"},
    {"unsupported", 415, 2, "UnsupportedError"},
    {"corrupt", 422, 6, "UnprocessableEntityError"},
    {"overloaded", 503, 7, "ServiceUnavailableError"},
    {"no_space", 507, 7, "InsufficientStorageError"},
    {"disconnected", 502, 8, "DisconnectedError"},
    {"deadline", 504, 9, "TimeoutError"},
    {"cancelled", 499, 10, "CancelledError"},
    {"internal", 500, 70, "InternalServerError"},
}};
static_assert(kTraits.size() == static_cast<std::size_t>(ErrorCode::kInternal) + 1);

}  // namespace

const ErrorTraits& error_traits(ErrorCode code) {
  return kTraits.at(static_cast<std::size_t>(code));
}

ErrorCode code_of_http_status(int status) {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].http_status == status) return static_cast<ErrorCode>(i);
  }
  return ErrorCode::kInternal;
}

}  // namespace weft
