#pragma once
// HTTP/1.1 heads and framing as text (RFC 9112), for both ends. Pure functions: nothing here knows
// a socket. Stricter than RFC 9112 wherever leniency lets one message hide another: one
// Content-Length of digits only, `chunked` as the only transfer coding and never in HTTP/1.0, no
// folded fields, no bare LF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/http/message.h"

namespace weft::http {

inline constexpr std::size_t kMaxHeadBytes = 64u << 10;

bool equal_ignoring_case(std::string_view a, std::string_view b);

// How the end of a body is found.
struct Framing {
  bool chunked = false;
  bool until_close = false;        // responses only
  std::uint64_t length_bytes = 0;  // when neither of the two
  bool empty() const { return !chunked && !until_close && length_bytes == 0; }
};

struct RequestHead {
  Request request;  // without body, path, query and params
  Framing framing;
  bool http_1_0 = false;
  bool keep_alive = true;
  bool expects_continue = false;
};

struct ResponseHead {
  Response response;  // without body
  Framing framing;
  bool keep_alive = true;
};

// The size of the head (with its blank line) that `data` starts with; 0: more bytes are needed.
// Errors: kInvalidArgument (a bare LF), kTooLarge (over kMaxHeadBytes).
Result<std::size_t> head_size(std::string_view data);

// `head` is what head_size() measured. Errors: kInvalidArgument.
Result<RequestHead> parse_request_head(std::string_view head);
// `method` is that of the request. Errors: kCorrupt.
Result<ResponseHead> parse_response_head(std::string_view head, std::string_view method);

// The head of a response up to and with its blank line. Framing fields among `response.headers` are
// left out; CR and LF in values become spaces.
enum class BodyKind { kLength, kChunked, kUntilClose };
std::string response_head_text(const Response& response, BodyKind kind, std::uint64_t body_bytes,
                               bool keep_alive);
// True for the statuses that have no body, whatever the method (RFC 9110 6.4.1).
bool status_has_no_body(int status);

// `target` and `headers` come first, `extra` holds whole lines ("Expect: 100-continue\r\n").
std::string request_head_text(const Request& request, const Url& server, std::string_view extra);

// Finds the data between the lines of a chunked body (RFC 9112 7.1). Extensions and trailers are
// skipped; one byte of data pays for 16 of framing, so that a body cannot be all extensions. One
// thread.
class ChunkScanner {
 public:
  // Takes framing bytes from the front of `input` until data or the end of the body is reached.
  // Returns: how many. Errors: kInvalidArgument.
  Result<std::size_t> take_framing(std::string_view input);
  // Body bytes that come next; 0: framing comes next, or done().
  std::uint64_t data_bytes() const { return state_ == State::kData ? left_bytes_ : 0; }
  // Requires: count <= data_bytes().
  void take_data(std::uint64_t count);
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State {
    kSizeStart,
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kLineStart,
    kTrailer,
    kTrailerLf,
    kEndLf,
    kDone,
  };
  // Of framing without data: far more than anybody sends.
  static constexpr std::uint64_t kMaxFramingBytes = 16u << 10;
  bool take(char c);

  State state_ = State::kSizeStart;
  std::uint64_t left_bytes_ = 0;
  std::uint64_t framing_room_bytes_ = kMaxFramingBytes;
};

}  // namespace weft::http
