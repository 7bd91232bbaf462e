#pragma once
// Errors as values. A code says what the receiver should do next; the message says what happened.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

// What the receiver of an error should do. `error_traits` maps each code outward, to HTTP and to a
// process's exit status, in one table.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,     // the request is wrong: fix it
  kUnauthenticated,     // credentials are absent or bad: authenticate
  kForbidden,           // known, but not allowed: ask for access
  kNotFound,            // no such version, tensor, model, route: choose another
  kMethodNotAllowed,    // the resource exists, the method does not: use another method
  kConflict,            // the state moved, or the call is out of order: read it again
  kPreconditionFailed,  // If-Match did not hold: read again, then decide
  kTooLarge,            // over a declared limit: split or shrink
  kRangeInvalid,        // the byte range cannot be satisfied: ask for the size
  kUnsupported,         // format, dtype, architecture or encoding unknown here: use another
  kCorrupt,             // bytes failed a digest or a format's rule: send again, do not use
  kOverloaded,          // out of slots, queue or memory for now: back off, then retry
  kNoSpace,             // the disk is full: free some, then retry
  kDisconnected,        // the peer went away in the middle: reconnect and resume
  kDeadline,            // time ran out: retry with more, or give up
  kCancelled,           // we were asked to stop
  kInternal,            // a bug here: report it
};

// How a code looks from outside.
struct ErrorTraits {
  const char* name;       // as in logs and metrics, snake_case
  int http_status;        // of a response that carries it
  int exit_status;        // of a program that ends with it
  const char* http_type;  // `type` in vLLM's error body
};
const ErrorTraits& error_traits(ErrorCode code);

// The code that a peer's HTTP status stands for; kInternal for a status that no code has.
ErrorCode code_of_http_status(int status);

// A code, a sentence for whoever reads it, and where it applies. Immutable once returned.
class Error {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}
  // `param` names the offending field as vLLM does, for example "body.max_tokens".
  Error(ErrorCode code, std::string message, std::string param)
      : code_(code), message_(std::move(message)), param_(std::move(param)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& param() const { return param_; }

  // The same error with "context: " in front, added on the way up.
  Error with_context(std::string_view context) && {
    message_.insert(0, ": ").insert(0, context);
    return std::move(*this);
  }

 private:
  ErrorCode code_;
  std::string message_;
  std::string param_;
};

}  // namespace weft
