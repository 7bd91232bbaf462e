#pragma once
// Errors in the words and shapes of vLLM's API, so that its clients understand them. Pure
// functions.
//
// vLLM has two kinds of 400. What its request models refuse has the type "Bad Request" and a
// `param` with the place ("body.max_tokens", "query.mode", or null for the body as a whole); what
// is refused later has the type "BadRequestError" and the bare name of the parameter or null. The
// param of our Error decides which it is. Source: the recorded answers in tests/recorded.

#include <string>
#include <string_view>

#include "weft/base/error.h"
#include "weft/http/message.h"

namespace weft {

// "1 validation error: {'type': ..., 'loc': ..., 'msg': ..., 'input': ...}". `place` is "body.name"
// or "query.name"; `input` is what was given, as text.
Error validation_error(std::string_view type, std::string_view place, std::string_view reason,
                       std::string_view input);
Error missing_field_error(std::string_view place);
// About the body as a whole: `param` is null in the answer.
Error body_error(std::string message);
// "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)".
Error parameter_error(std::string_view name, std::string_view value, std::string_view reason);

// {"error": {"message", "type", "param", "code"}} with the code's status; Retry-After on 503.
http::Response api_error_response(const Error& error);

}  // namespace weft
