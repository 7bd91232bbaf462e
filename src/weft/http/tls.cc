#include <cerrno>
#include <system_error>
#include <utility>

#include <boost/asio/error.hpp>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include "weft/base/check.h"
#include "weft/http/server.h"
#include "weft/http/tls-inl.h"

namespace weft::http {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using tcp = net::ip::tcp;

// The first error of this thread's queue is what caused the others.
std::string take_reason() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(code)) return std::generic_category().message(ERR_GET_REASON(code));
  const char* const reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "unknown error";
}

// BIO_s_socket(3) writes with write(2), which raises SIGPIPE on a connection that broke.
int send_quietly(BIO* bio, const char* data, int size) {
  const ssize_t sent = ::send(static_cast<int>(BIO_get_fd(bio, nullptr)), data,
                              static_cast<std::size_t>(size), MSG_NOSIGNAL);
  BIO_clear_retry_flags(bio);
  if (sent <= 0 && BIO_sock_should_retry(static_cast<int>(sent)) != 0) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

const BIO_METHOD* quiet_socket() {
  static const BIO_METHOD* const method = [] {
    const BIO_METHOD* const socket = BIO_s_socket();
    BIO_METHOD* const quiet = BIO_meth_new(BIO_TYPE_SOCKET, "socket without SIGPIPE");
    WEFT_CHECK(quiet != nullptr);
    BIO_meth_set_write(quiet, send_quietly);
    BIO_meth_set_read(quiet, BIO_meth_get_read(socket));
    BIO_meth_set_ctrl(quiet, BIO_meth_get_ctrl(socket));
    BIO_meth_set_create(quiet, BIO_meth_get_create(socket));
    BIO_meth_set_destroy(quiet, BIO_meth_get_destroy(socket));
    return quiet;
  }();
  return method;
}

// A key with a passphrase is an error: there is nobody to ask.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

SSL_CTX* new_context(const SSL_METHOD* method) {
  SSL_CTX* const context = SSL_CTX_new(method);
  WEFT_CHECK(context != nullptr);  // out of memory, or OpenSSL's own configuration is broken
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  // SSL_CTX_set_mode(3): a write is done once a record is; what is repeated may lie elsewhere; an
  // idle connection holds no buffers.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  return context;
}

Error unusable(const std::string& file, std::string_view what) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}: {}", file, what, take_reason()));
}

}  // namespace

void TlsContext::Free::operator()(SSL_CTX* context) const {
  SSL_CTX_free(context);
}

Result<std::shared_ptr<const TlsContext>> TlsContext::blocking_make_server(
    const std::string& certificate_file, const std::string& key_file) {
  ERR_clear_error();
  const std::shared_ptr<const TlsContext> made(new TlsContext(new_context(TLS_server_method())));
  SSL_CTX* const context = made->context_.get();
  SSL_CTX_set_num_tickets(context, 0);
  if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) != 1) {
    return unusable(certificate_file, "no certificate chain in PEM");
  }
  const std::string& key = key_file.empty() ? certificate_file : key_file;
  // Compares the key with the certificate, too.
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return unusable(key, fmt::format("no private key in PEM for {}", certificate_file));
  }
  return made;
}

Result<std::shared_ptr<const TlsContext>> TlsContext::blocking_make_client(
    const std::string& ca_file) {
  ERR_clear_error();
  const std::shared_ptr<const TlsContext> made(new TlsContext(new_context(TLS_client_method())));
  SSL_CTX* const context = made->context_.get();
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (ca_file.empty()) {
    // Or what SSL_CERT_FILE and SSL_CERT_DIR name: SSL_CTX_set_default_verify_paths(3). A machine
    // without any trusts nobody.
    SSL_CTX_set_default_verify_paths(context);
    return made;
  }
  if (SSL_CTX_load_verify_file(context, ca_file.c_str()) != 1) {
    return unusable(ca_file, "no certificates in PEM");
  }
  return made;
}

std::unique_ptr<TlsSession> TlsContext::accept(int descriptor) const {
  return std::make_unique<TlsSession>(context_.get(), descriptor, TlsSession::Role::kServer, "");
}

std::unique_ptr<TlsSession> TlsContext::connect(int descriptor, const std::string& host) const {
  return std::make_unique<TlsSession>(context_.get(), descriptor, TlsSession::Role::kClient, host);
}

void TlsSession::Free::operator()(SSL* ssl) const {
  SSL_free(ssl);
}

TlsSession::TlsSession(SSL_CTX* context, int descriptor, Role role, const std::string& host)
    : ssl_(SSL_new(context)) {
  BIO* const bio = BIO_new(quiet_socket());
  WEFT_CHECK(ssl_ && bio != nullptr);  // only for want of memory
  BIO_set_fd(bio, descriptor, BIO_NOCLOSE);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (role == Role::kServer) {
    SSL_set_accept_state(ssl_.get());
    return;
  }
  SSL_set_connect_state(ssl_.get());
  SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  WEFT_CHECK(SSL_set1_host(ssl_.get(), host.c_str()) == 1);  // of an IP address, too
  error_code is_name;
  net::ip::make_address(host, is_name);
  std::string name = host;
  if (is_name) {  // SSL_set_tlsext_host_name(3); only names: RFC 6066 3
    SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
  }
}

// What `result`, of the call just made, means: SSL_get_error(3).
error_code TlsSession::failure(int result) {
  const int broken = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      wants_ = tcp::socket::wait_read;
      return net::error::would_block;
    case SSL_ERROR_WANT_WRITE:
      wants_ = tcp::socket::wait_write;
      return net::error::would_block;
    case SSL_ERROR_ZERO_RETURN:
      return net::error::eof;
    default:
      usable_ = false;
  }
  const unsigned long code = ERR_peek_error();
  if (code != 0 && ERR_GET_REASON(code) != SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return boost::system::errc::make_error_code(boost::system::errc::protocol_error);
  }
  if (code != 0 || broken == 0) return net::error::connection_aborted;
  return error_code(broken, net::error::get_system_category());
}

Result<bool> TlsSession::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  usable_ = result == 1;
  if (usable_) return true;
  const error_code failed = failure(result);
  if (failed == net::error::would_block) return false;
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) {
    const bool known = verdict == X509_V_ERR_HOSTNAME_MISMATCH ||
                       verdict == X509_V_ERR_IP_ADDRESS_MISMATCH ||
                       verdict == X509_V_ERR_CERT_HAS_EXPIRED;
    return Error(ErrorCode::kUnauthenticated,
                 fmt::format("the server's certificate is refused: {}{}",
                             X509_verify_cert_error_string(verdict),
                             known ? "" : "; --ca FILE says whom to trust"));
  }
  if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST) {
    return Error(ErrorCode::kInvalidArgument, "this port speaks https only, this was http");
  }
  if (failed == boost::system::errc::protocol_error) {
    return Error(ErrorCode::kUnsupported, fmt::format("no TLS connection: {}", take_reason()));
  }
  return Error(ErrorCode::kDisconnected, "the connection broke in the TLS handshake");
}

// Calls `step(done, &moved)` until all `size` bytes are moved or it fails.
template <typename Step>
std::size_t TlsSession::move(std::size_t size, Step step, error_code& failed) {
  std::size_t done = 0;
  while (done < size) {
    ERR_clear_error();
    errno = 0;
    std::size_t moved = 0;
    const int result = step(done, &moved);
    if (result != 1) {
      failed = failure(result);
      break;
    }
    done += moved;
  }
  if (done > 0) failed = error_code();  // the next call says it again
  return done;
}

std::size_t TlsSession::read(std::span<std::byte> room, error_code& failed) {
  const auto step = [&](std::size_t done, std::size_t* moved) {
    return SSL_read_ex(ssl_.get(), &room[done], room.size() - done, moved);
  };
  return move(room.size(), step, failed);
}

std::size_t TlsSession::write(std::span<const std::byte> data, error_code& failed) {
  const auto step = [&](std::size_t done, std::size_t* moved) {
    return SSL_write_ex(ssl_.get(), &data[done], data.size() - done, moved);
  };
  return move(data.size(), step, failed);
}

bool TlsSession::has_pending() const {
  return SSL_pending(ssl_.get()) > 0;
}

void TlsSession::finish() {
  // SSL_shutdown(3): not after a failure; and it only sends, as it is called once.
  if (std::exchange(usable_, false)) SSL_shutdown(ssl_.get());
}

Result<std::shared_ptr<const TlsContext>> blocking_load_certificate(
    const std::string& certificate_file, const std::string& key_file) {
  return TlsContext::blocking_make_server(certificate_file, key_file);
}

}  // namespace weft::http
