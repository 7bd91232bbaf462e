#pragma once
// An HTTP/1.1 client for one server: keep-alive connections, many requests at once, bulk bodies
// sent from where they lie. Asio stays in client.cc.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/body.h"
#include "weft/http/message.h"

namespace weft::http {

struct ClientOptions {
  std::chrono::milliseconds connect_timeout{10'000};
  // Without a byte in or out, within a body or before the answer: let it be longer than what a
  // request may wait for (a long poll, a generation that is not streamed).
  std::chrono::milliseconds idle_timeout{60'000};
  std::chrono::milliseconds request_timeout{1'800'000};  // from the first byte to the last
  std::size_t max_connections = 64;                      // kept open between calls
  std::uint64_t response_limit_bytes = 1u << 30;
  std::string key;  // sent as `Authorization: Bearer KEY` unless it is empty; never shown
  // PEM file of the authorities that an https server's certificate may be from; "": those of this
  // machine, or what SSL_CERT_FILE names.
  std::string ca_file;
};

// Thread-safe: calls from several threads use connections of their own.
class Client {
 public:
  // Does not connect yet; an `options.ca_file` that is no good is an error of each call.
  // `server.path` goes in front of every target.
  static std::unique_ptr<Client> make(Url server, ClientOptions options = {});
  virtual ~Client() = default;

  virtual const Url& server() const = 0;

  // Sends one request and reads the whole answer, whatever its status. A request on a kept
  // connection that the server had closed meanwhile is sent again once, on a new one, if no byte of
  // an answer came and sending it twice is harmless: the method is idempotent (RFC 9110 9.2.2), or
  // the server reset the connection, so that it cannot have read the request. Blocks. Errors:
  // kDisconnected (cannot connect, connection broke), kDeadline, kCancelled, kTooLarge, kCorrupt
  // (no HTTP), kUnauthenticated (the server's certificate), kUnsupported (no TLS there),
  // kInvalidArgument (ca_file); the message names the server.
  virtual Result<Response> blocking_send(const Request& request) = 0;

  // Sends all, at most options.max_connections at a time; answers come in the order of the
  // requests. Blocks.
  virtual std::vector<Result<Response>> blocking_send_all(std::span<const Request> requests) = 0;

  // Sends a request whose body is `parts` one after the other, from where they lie, with their
  // total as Content-Length and, for more than 4 MiB, `Expect: 100-continue`. `progress(bytes)` is
  // called now and then with the number of body bytes sent so far. An answer that comes early (an
  // error) ends the sending. Blocks.
  virtual Result<Response> blocking_send_from(
      const Request& head, std::span<const std::span<const std::byte>> parts,
      const std::function<void(std::uint64_t)>& progress) = 0;

  // As blocking_send_from(), with the body that `source` makes while it is sent. Errors: those of
  // `source` too.
  virtual Result<Response> blocking_send_source(const Request& head, BodySource& source) = 0;

  // Sends one request; the body of a 2xx answer goes from the socket into `sink`'s memory, and the
  // response's body is then empty. Any other answer comes whole, as from blocking_send(); so does a
  // 200 to a request with a Range, which has bytes that were not asked for. `sink` gets finish()
  // after the last byte, abort() if the body breaks off, and nothing if no such body began or if
  // the error is its own. Blocks. Errors: as blocking_send(), and those of `sink`.
  virtual Result<Response> blocking_send_into(const Request& request, BodySink& sink) = 0;

  // Sends one request and hands over the body piece by piece as it arrives (server-sent events).
  // `piece` returns false to stop: the connection is closed. The response's body is empty.
  virtual Result<Response> blocking_send_streaming(
      const Request& request, const std::function<bool(std::string_view)>& piece) = 0;

  // Ends all calls under way, and all that come, with kCancelled. Does not block.
  virtual void cancel() = 0;
};

}  // namespace weft::http
