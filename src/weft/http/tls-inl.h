#pragma once
// TLS 1.2 and 1.3 by OpenSSL 3, on a connected non-blocking socket. For this module's .cc files
// only.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <openssl/types.h>

#include "weft/base/result.h"

namespace weft::http {

// One connection's TLS. One thread at a time. It knows the descriptor, not the socket: it must not
// be used once that is closed.
class TlsSession {
 public:
  enum class Role { kServer, kClient };
  // As a server, or as a client of `host`, a name or an IP address, which must be in the server's
  // certificate. `descriptor` must be non-blocking.
  TlsSession(SSL_CTX* context, int descriptor, Role role, const std::string& host);

  // Goes on with the handshake. Returns whether it is done; if not, wants() says what it waits for.
  // Errors: kUnauthenticated (the server's certificate is not what it must be), kUnsupported (the
  // peer speaks no TLS, or none that we take), kInvalidArgument (it sent a plain request),
  // kDisconnected.
  Result<bool> shake_hands();

  // As recv(2) and send(2) without waiting: `failed` is would_block (then wants() says what to wait
  // for), eof (the peer said that it sends nothing more), or what went wrong; connection_aborted is
  // an end that the peer did not announce: somebody may have cut its message short. It is not set
  // when something was moved.
  std::size_t read(std::span<std::byte> room, boost::system::error_code& failed);
  // After would_block the next call must begin with the same bytes and have as many, or more.
  std::size_t write(std::span<const std::byte> data, boost::system::error_code& failed);
  boost::asio::ip::tcp::socket::wait_type wants() const { return wants_; }

  // Bytes that read() returns though the socket may have none.
  bool has_pending() const;
  // Tells the peer that nothing more is sent (close_notify), where that needs no wait.
  void finish();

 private:
  struct Free {
    void operator()(SSL* ssl) const;
  };
  boost::system::error_code failure(int result);
  template <typename Step>
  std::size_t move(std::size_t size, Step step, boost::system::error_code& failed);

  std::unique_ptr<SSL, Free> ssl_;
  boost::asio::ip::tcp::socket::wait_type wants_ = boost::asio::ip::tcp::socket::wait_read;
  bool usable_ = false;  // past the handshake and before the first failure
};

// What the connections of one server or of one client have in common. Immutable: any thread.
class TlsContext {
 public:
  // Errors: kInvalidArgument naming the file.
  static Result<std::shared_ptr<const TlsContext>> blocking_make_server(
      const std::string& certificate_file, const std::string& key_file);
  // "": the authorities of this machine. Errors: kInvalidArgument naming the file.
  static Result<std::shared_ptr<const TlsContext>> blocking_make_client(const std::string& ca_file);

  std::unique_ptr<TlsSession> accept(int descriptor) const;
  std::unique_ptr<TlsSession> connect(int descriptor, const std::string& host) const;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const;
  };
  explicit TlsContext(SSL_CTX* context) : context_(context) {}

  std::unique_ptr<SSL_CTX, Free> context_;
};

}  // namespace weft::http
