#pragma once
// An HTTP/1.1 server: a table of routes, handlers that may answer from any thread, and bulk bodies
// that stream straight into memory the handler reserved. Asio stays in server.cc.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/body.h"
#include "weft/http/message.h"

namespace weft::http {

// One request that is being answered. Thread-safe; answers are handed over to the I/O thread that
// owns the connection. Dropping the last reference without an answer sends a 500.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Answers whole, with a Content-Length. Call once, and neither begin_stream().
  virtual void respond(Response response) = 0;
  // Answers with `head` and a body that is head.body and then `parts` one after the other, sent
  // from where they lie. `keep_alive` is held until the last byte is out. A file that turns out
  // shorter than its part ends the connection, and the log says so.
  virtual void respond_from(Response head, std::vector<BodyPart> parts,
                            std::shared_ptr<const void> keep_alive) = 0;

  // Answers piece by piece (chunked). A client that falls more than kMaxQueuedBytes behind is cut
  // off.
  static constexpr std::size_t kMaxQueuedBytes = 4u << 20;
  virtual void begin_stream(Response head) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;

  // `closed` is called once, on the I/O thread, if the client goes away before the answer is
  // complete; at once if it has gone already.
  virtual void on_close(std::function<void()> closed) = 0;
  // Ends the connection, as if the client had gone: a body that is being read is aborted.
  virtual void close() = 0;
  // The answer may never come and nothing is lost without it: a server that stops does not wait for
  // it, it closes the connection at once.
  virtual void close_at_stop() {}
};

using Handler = std::function<void(const Request&, std::shared_ptr<Exchange>)>;
// Looks at the head of the request (Content-Length is in its headers; the body is empty) and
// returns where the body is to go, or the error to answer with before any byte is read (and before
// 100 Continue).
using BulkHandler =
    std::function<Result<std::unique_ptr<BodySink>>(const Request&, std::shared_ptr<Exchange>)>;

// Which key a request needs, as `Authorization: Bearer KEY` (RFC 6750). The admin key opens all.
enum class Access { kOpen, kApi, kRead, kAdmin };

// A class whose key is empty is open.
struct ServerKeys {
  std::string admin_key;
  std::string read_key{};
  std::string api_key{};
};

// One row of the route table. Handlers run on I/O threads and must not block.
struct Route {
  std::string method;   // GET rows also answer HEAD
  std::string pattern;  // "/weft/v1/uploads/{id}/blocks"; {name} matches one segment
  Handler handler;      // exactly one of the two is set
  BulkHandler bulk_handler;
  std::uint64_t body_limit_bytes =
      32u << 20;                   // of a buffered body: 413 before it is read. 64 for control
  Access access = Access::kAdmin;  // 401 before the body is read; what is open says so
};

// A certificate and its key, for any number of servers.
class TlsContext;
// `certificate_file`: the certificate and those between it and an authority, in PEM; `key_file`:
// its key, which is in the first file if this is "". Blocks. Errors: kInvalidArgument naming the
// file.
Result<std::shared_ptr<const TlsContext>> blocking_load_certificate(
    const std::string& certificate_file, const std::string& key_file);

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any free one
  unsigned io_threads = 2;
  std::size_t max_connections = 16'384;
  std::chrono::seconds header_timeout{
      30};  // from the first byte of a request to the end of its head; also of a TLS handshake
  std::chrono::seconds idle_timeout{300};  // keep-alive, and between two reads of a body
  ServerKeys keys;
  std::shared_ptr<const TlsContext> tls;  // https, where it is set; else http
  // "HOST:PORT" (with TLS too, where that is set), or "unix:PATH" of a socket that only this user
  // may connect to: rows of Access::kAdmin are there alone, beside all others; elsewhere they are
  // 404. "": they are with the others.
  std::string admin_listen;
};

// What happened since the server began, for metrics.
struct ServerCounts {
  std::size_t open_connections = 0;  // now
  std::uint64_t accepted = 0;        // connections
  std::uint64_t refused = 0;         // connections over max_connections; each was told 503
  std::uint64_t timed_out = 0;       // closed in the middle of a request, an answer, a handshake
  std::map<int, std::uint64_t> responses;  // number of answers by status
};

// Listens from create() to stop() or destruction. Thread-safe.
class Server {
 public:
  // Raises this process's limit of open files as far as it may; connections take at most seven
  // eighths of it. Errors: kConflict when the port is taken, kInvalidArgument for a host that is
  // none, a path that is something else's, or for two routes that match the same request.
  static Result<std::unique_ptr<Server>> create(ServerOptions options, std::vector<Route> routes);
  virtual ~Server() = default;

  virtual std::uint16_t port() const = 0;
  // Of admin_listen, as clients take it: "http://HOST:PORT" or "unix:PATH"; "" where it is not set.
  virtual std::string admin_url() const = 0;
  virtual std::size_t open_connections() const = 0;
  virtual ServerCounts counts() const = 0;
  // Stops accepting, lets requests that have begun finish for at most `grace` (but for those that
  // asked for close_at_stop()), then closes all. Blocks.
  virtual void blocking_stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace weft::http
