#pragma once
// What the pull routes say, and the JSON bodies they take. Pure. docs/protocol.md.

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/http/message.h"
#include "weft/transfer/version_source.h"

namespace weft::internal {

// An answer that may be another one a moment later: no cache keeps it.
http::Response fresh(http::Response response);
http::Response refusal(const Error& error);
// 412, with the id that the head has now ("": there is no such head).
http::Response head_conflict(const Error& error, std::string_view current_id);

http::Response heads_response(std::span<const Head> heads);
http::Response head_response(const Head& head, std::string_view label);
http::Response record_response(const VersionRecord& record);
http::Response records_response(std::span<const VersionRecord> records);

// How long a request may wait: its query `wait`, 0 to 300 seconds, 0 where it is absent. Errors:
// kInvalidArgument.
Result<std::chrono::seconds> wait_of(const http::Request& request);

// {"id"}: the version that a head or a label is to name. Errors: kInvalidArgument.
Result<std::string> parse_target(std::string_view body);

}  // namespace weft::internal
