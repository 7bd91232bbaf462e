#pragma once
// Where a server listens: addresses and UNIX sockets. For server.cc only.

#include <string>
#include <string_view>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>

#include "weft/base/result.h"

namespace weft::http {

using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

// Errors: kConflict when the port is taken; kInvalidArgument for a host that is no IP address.
Result<Acceptor> listen_at(boost::asio::io_context& io, const std::string& host,
                           std::uint16_t port);
// The port that it got.
std::uint16_t port_of(const Acceptor& acceptor);

// A socket file that only this user may connect to. One that nobody listens on is taken away first.
// Errors: kConflict when somebody does, or when the path is something else's; kInvalidArgument.
Result<Acceptor> listen_at_path(boost::asio::io_context& io, const std::string& path);

}  // namespace weft::http
