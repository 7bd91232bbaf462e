#include "weft/http/wire.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include <fmt/format.h>

namespace weft::http {
namespace {

constexpr std::size_t kNpos = std::string_view::npos;
Error bad(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

bool is_token_char(char c) {  // RFC 9110 5.6.2
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != kNpos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == kNpos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Cuts the next line, without its CRLF, off the front of `rest`.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find("\r\n");
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(rest.size(), line.size() + 2));
  return line;
}

Result<Headers> parse_fields(std::string_view rest) {
  Headers headers;
  while (true) {
    const std::string_view line = take_line(rest);
    if (line.empty()) return headers;
    const std::size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    if (colon == kNpos || !is_token(name)) return bad("malformed header field");
    const std::string_view value = trim(line.substr(colon + 1));
    if (std::any_of(value.begin(), value.end(), is_control)) {
      return bad(fmt::format("control character in the value of {}", name));
    }
    headers.add(std::string(name), std::string(value));
  }
}

std::size_t count_of(const Headers& headers, std::string_view name) {
  return static_cast<std::size_t>(
      std::count_if(headers.begin(), headers.end(),
                    [&](const auto& field) { return equal_ignoring_case(field.first, name); }));
}

// Whether a list-valued field (Connection) has `token`.
bool has_token(const Headers& headers, std::string_view name, std::string_view token) {
  for (const auto& [key, value] : headers) {
    if (!equal_ignoring_case(key, name)) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      if (equal_ignoring_case(trim(rest.substr(0, comma)), token)) return true;
      rest.remove_prefix(std::min(rest.size(), comma + 1));
    }
  }
  return false;
}

// Fills chunked and length_bytes; `has_length` tells 0 from absent.
Result<Framing> parse_framing(const Headers& headers, bool http_1_0, bool& has_length) {
  Framing framing;
  const std::size_t codings = count_of(headers, "Transfer-Encoding");
  const std::size_t lengths = count_of(headers, "Content-Length");
  has_length = lengths != 0;
  if (codings + lengths > 1) return bad("more than one Content-Length or Transfer-Encoding");
  if (codings == 1) {
    if (http_1_0 || !equal_ignoring_case(*headers.try_get("Transfer-Encoding"), "chunked")) {
      return bad("the only Transfer-Encoding understood is chunked, in HTTP/1.1");
    }
    framing.chunked = true;
  } else if (lengths == 1) {
    const std::string_view text = *headers.try_get("Content-Length");
    const char* end = text.data() + text.size();
    const auto [stop, failed] = std::from_chars(text.data(), end, framing.length_bytes);
    if (text.empty() || failed != std::errc() || stop != end) return bad("bad Content-Length");
  }
  return framing;
}

bool stays_open(const Headers& headers, bool http_1_0) {
  return !http_1_0 && !has_token(headers, "Connection", "close");
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 416:
      return "Range Not Satisfiable";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 507:
      return "Insufficient Storage";
    default:
      return "Status";
  }
}

// Fields that the writer of a head sets itself.
bool is_own_field(std::string_view name) {
  constexpr std::string_view kOwn[] = {"Content-Length", "Transfer-Encoding", "Connection", "Host",
                                       "Expect"};
  return std::any_of(std::begin(kOwn), std::end(kOwn),
                     [&](std::string_view own) { return equal_ignoring_case(own, name); });
}

// A value with CR or LF in it would start another field, or another message.
void append_fields(std::string& out, const Headers& headers) {
  for (const auto& [name, value] : headers) {
    if (!is_token(name) || is_own_field(name)) continue;
    out.append(name).append(": ");
    for (const char c : value) out += is_control(c) ? ' ' : c;
    out.append("\r\n");
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

Result<std::size_t> head_size(std::string_view data) {
  const std::string_view head = data.substr(0, kMaxHeadBytes);
  std::size_t line_begin = 0;
  while (true) {
    const std::size_t lf = head.find('\n', line_begin);
    if (lf == kNpos) break;
    if (lf == 0 || head[lf - 1] != '\r') return bad("a line of the head ends without CR");
    if (lf - 1 == line_begin) return lf + 1;
    line_begin = lf + 1;
  }
  if (data.size() >= kMaxHeadBytes) {
    return Error(ErrorCode::kTooLarge, fmt::format("the head is over {} bytes", kMaxHeadBytes));
  }
  return std::size_t{0};
}

Result<RequestHead> parse_request_head(std::string_view head) {
  RequestHead parsed;
  Request& request = parsed.request;
  const std::string_view line = take_line(head);
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == kNpos || first == last) return bad("malformed request line");
  request.method = line.substr(0, first);
  request.target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(request.method)) return bad("malformed method");
  const bool bad_target = std::any_of(request.target.begin(), request.target.end(), [](char c) {
    return c == ' ' || c == '\t' || is_control(c);
  });
  if (request.target.empty() || bad_target) return bad("malformed request target");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return bad("expected HTTP/1.1 or HTTP/1.0");
  parsed.http_1_0 = version == "HTTP/1.0";
  WEFT_TRY(request.headers, parse_fields(head));

  const std::size_t hosts = count_of(request.headers, "Host");
  if (hosts > 1 || (hosts == 0 && !parsed.http_1_0)) return bad("expected one Host field");
  bool has_length = false;
  WEFT_TRY(parsed.framing, parse_framing(request.headers, parsed.http_1_0, has_length));
  parsed.keep_alive = stays_open(request.headers, parsed.http_1_0);
  if (const auto expect = request.headers.try_get("Expect"); expect && !parsed.http_1_0) {
    if (!equal_ignoring_case(*expect, "100-continue")) return bad("unknown Expect");
    parsed.expects_continue = true;
  }
  return parsed;
}

Result<ResponseHead> parse_response_head(std::string_view head, std::string_view method) {
  const auto corrupt = [](std::string_view what) {
    return Error(ErrorCode::kCorrupt, fmt::format("the answer is no HTTP/1.1: {}", what));
  };
  ResponseHead parsed;
  const std::string_view line = take_line(head);  // HTTP/1.1 200 OK
  const bool http_1_0 = line.starts_with("HTTP/1.0 ");
  int& status = parsed.response.status;
  if (line.size() < 12 || (!http_1_0 && !line.starts_with("HTTP/1.1 "))) {
    return corrupt("malformed status line");
  }
  const auto [stop, failed] = std::from_chars(line.data() + 9, line.data() + 12, status);
  if (failed != std::errc() || stop != line.data() + 12 || status < 100) {
    return corrupt("malformed status");
  }
  auto fields = parse_fields(head);
  if (!fields) return corrupt(fields.error().message());
  parsed.response.headers = std::move(*fields);
  bool has_length = false;
  auto framing = parse_framing(parsed.response.headers, http_1_0, has_length);
  if (!framing) return corrupt(framing.error().message());
  if (method != "HEAD" && !status_has_no_body(status)) {
    parsed.framing = *framing;
    parsed.framing.until_close = !has_length && !framing->chunked;
  }
  parsed.keep_alive = stays_open(parsed.response.headers, http_1_0) && !parsed.framing.until_close;
  return parsed;
}

bool status_has_no_body(int status) {
  return status < 200 || status == 204 || status == 304;
}

std::string response_head_text(const Response& response, BodyKind kind, std::uint64_t body_bytes,
                               bool keep_alive) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_of(response.status));
  append_fields(out, response.headers);
  if (!status_has_no_body(response.status)) {
    if (kind == BodyKind::kLength) out += fmt::format("Content-Length: {}\r\n", body_bytes);
    if (kind == BodyKind::kChunked) out += "Transfer-Encoding: chunked\r\n";
  }
  if (!keep_alive) out += "Connection: close\r\n";
  return out += "\r\n";
}

std::string request_head_text(const Request& request, const Url& server, std::string_view extra) {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\n", request.method, server.path,
                                request.target, server.authority());
  append_fields(out, request.headers);
  return out.append(extra).append("\r\n");
}

void ChunkScanner::take_data(std::uint64_t count) {
  left_bytes_ -= count;
  const std::uint64_t earned_bytes = std::min<std::uint64_t>(count, kMaxFramingBytes) * 16;
  framing_room_bytes_ = std::min(kMaxFramingBytes, framing_room_bytes_ + earned_bytes);
  if (left_bytes_ == 0) state_ = State::kDataCr;
}

Result<std::size_t> ChunkScanner::take_framing(std::string_view input) {
  std::size_t taken = 0;
  while (taken < input.size() && state_ != State::kData && state_ != State::kDone) {
    if (framing_room_bytes_ == 0) return bad("more framing than data in a chunked body");
    if (!take(input[taken])) return bad("malformed chunked body");
    --framing_room_bytes_;
    ++taken;
  }
  return taken;
}

// One step of the grammar. Returns: false for a byte that does not belong there.
bool ChunkScanner::take(char c) {
  const auto expect = [&](char wanted, State next) {
    if (c == wanted) state_ = next;
    return c == wanted;
  };
  switch (state_) {
    case State::kSizeStart:
      left_bytes_ = 0;
      [[fallthrough]];
    case State::kSize: {
      const int digit = hex_digit(c);
      if (digit >= 0) {
        state_ = State::kSize;
        if (left_bytes_ >> 60 != 0) return false;
        left_bytes_ = left_bytes_ * 16 + static_cast<std::uint64_t>(digit);
        return true;
      }
      if (state_ == State::kSizeStart) return false;
      if (c == '\r') return expect('\r', State::kSizeLf);
      state_ = State::kExtension;
      return c == ';' || c == ' ' || c == '\t';
    }
    case State::kExtension:
      if (c == '\r') return expect('\r', State::kSizeLf);
      return !is_control(c);
    case State::kSizeLf:
      return expect('\n', left_bytes_ == 0 ? State::kLineStart : State::kData);
    case State::kDataCr:
      return expect('\r', State::kDataLf);
    case State::kDataLf:
      return expect('\n', State::kSizeStart);
    case State::kLineStart:
      if (c == '\r') return expect('\r', State::kEndLf);
      state_ = State::kTrailer;
      return is_token_char(c);
    case State::kTrailer:
      if (c == '\r') return expect('\r', State::kTrailerLf);
      return !is_control(c);
    case State::kTrailerLf:
      return expect('\n', State::kLineStart);
    case State::kEndLf:
      return expect('\n', State::kDone);
    case State::kData:
    case State::kDone:
      break;
  }
  return false;
}

}  // namespace weft::http
