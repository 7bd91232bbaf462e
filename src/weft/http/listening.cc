#include <cstring>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/http/listening-inl.h"
#include "weft/http/message.h"

namespace weft::http {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Endpoint = net::generic::stream_protocol::endpoint;

error_code listen_on(Acceptor& acceptor, const Endpoint& endpoint) {
  error_code failed;
  acceptor.open(endpoint.protocol(), failed);
  if (!failed) acceptor.set_option(Acceptor::reuse_address(true), failed);
  if (!failed) acceptor.bind(endpoint, failed);
  if (!failed) acceptor.listen(net::socket_base::max_listen_connections, failed);
  return failed;
}

// Takes a socket file away that nobody listens on.
Result<void> clear_path(const std::string& path, const net::local::stream_protocol::endpoint& at) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {};
  if (!S_ISSOCK(found.st_mode)) {
    return Error(ErrorCode::kConflict, fmt::format("{} is there and is no socket", path));
  }
  net::io_context io;
  net::local::stream_protocol::socket probe(io);
  error_code refused;
  probe.connect(at, refused);
  if (!refused) {
    return Error(ErrorCode::kConflict, fmt::format("another program listens at {}", path));
  }
  ::unlink(path.c_str());
  return {};
}

}  // namespace

Result<Acceptor> listen_at(net::io_context& io, const std::string& host, std::uint16_t port) {
  error_code failed;
  const auto address = net::ip::make_address(host == "localhost" ? "127.0.0.1" : host, failed);
  if (failed) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("`{}` is no address to listen on: expected an IP address", host));
  }
  Acceptor acceptor(io);
  failed = listen_on(acceptor, Endpoint(net::ip::tcp::endpoint(address, port)));
  if (!failed) return acceptor;
  if (failed == net::error::address_in_use) {
    return Error(ErrorCode::kConflict,
                 fmt::format("port {} on {} is in use by another program", port, host));
  }
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("cannot listen on {} port {}: {}", host, port, failed.message()));
}

std::uint16_t port_of(const Acceptor& acceptor) {
  const Endpoint endpoint = acceptor.local_endpoint();
  net::ip::tcp::endpoint address;
  std::memcpy(address.data(), endpoint.data(), endpoint.size());
  return address.port();
}

Result<Acceptor> listen_at_path(net::io_context& io, const std::string& path) {
  WEFT_TRY_VOID(Url::parse(std::string(kUnixPrefix) + path));
  const net::local::stream_protocol::endpoint at(path);
  WEFT_TRY_VOID(clear_path(path, at));
  Acceptor acceptor(io);
  const mode_t before =
      ::umask(S_IXUSR | S_IRWXG | S_IRWXO);  // no moment in which others may connect
  const error_code failed = listen_on(acceptor, Endpoint(at));
  ::umask(before);
  if (!failed) return acceptor;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("cannot listen at {}: {}", path, failed.message()));
}

}  // namespace weft::http
