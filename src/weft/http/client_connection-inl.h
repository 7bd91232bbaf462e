#pragma once
// A client's connection and the pool that idle ones wait in; for client.cc only.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/base/guarded.h"
#include "weft/http/socket_io-inl.h"

namespace weft::http {

// A connection, with the deadlines of what runs on it. One thread.
struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(net::io_context& io) : stream(tcp::socket(io)), resolver(io), timer_(io) {}

  // Ends whatever runs here when `timeout` is over, or when no byte has moved for `idle_timeout`,
  // unless disarm() or arm() come first.
  void arm(std::chrono::milliseconds timeout, std::chrono::milliseconds idle_timeout) {
    stream.last_active = Clock::now();
    deadline_ = stream.last_active + timeout;
    longest_silence_ = idle_timeout;
    ++arms_;
    wait();
  }
  void disarm() {
    ++arms_;
    timer_.cancel();
  }
  // Ends whatever runs here; `error` is why.
  void cut(Error error) {
    ended.emplace(std::move(error));
    resolver.cancel();
    error_code ignored;
    stream.socket.close(ignored);
  }

  Stream stream;
  tcp::resolver resolver;
  std::optional<Error> ended;  // why we ended it
  bool kept = false;           // it served an earlier request
  bool answered = false;       // a byte of the answer came
  bool reusable = false;       // for another request
  bool reset = false;          // the peer refused what we sent: it has not read it

 private:
  void wait() {
    const Clock::time_point silent = stream.last_active + longest_silence_;
    timer_.expires_at(std::min(deadline_, silent));
    // A timer that went off just before it was cancelled still calls: hence the count.
    timer_.async_wait([self = shared_from_this(), armed = arms_](error_code cancelled) {
      if (!cancelled && armed == self->arms_) self->check();
    });
  }
  void check() {
    const Clock::time_point now = Clock::now();
    if (now >= deadline_) return cut(Error(ErrorCode::kDeadline, "did not finish in time"));
    if (stream.relax()) stream.last_active = now;
    if (now - stream.last_active < longest_silence_) return wait();
    const auto seconds = std::chrono::duration<double>(longest_silence_).count();
    cut(Error(ErrorCode::kDeadline, fmt::format("was silent for {} s", seconds)));
  }

  net::steady_timer timer_;
  Clock::time_point deadline_;
  std::chrono::milliseconds longest_silence_{0};
  std::uint64_t arms_ = 0;
};

// Sockets belong to an io_context, and each call runs its own: of an idle connection the descriptor
// is kept.
struct Idle {
  int descriptor;
  std::unique_ptr<TlsSession> tls;  // or null

  // Nothing to read, not even the end.
  bool is_quiet() const {
    char byte = 0;
    const auto size = ::recv(descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  void close() {
    if (tls) tls->finish();
    ::close(descriptor);
  }
};

// Idle connections. Thread-safe.
class Pool {
 public:
  explicit Pool(std::size_t limit) : limit_(limit) {}
  ~Pool() {
    while (auto idle = try_take()) idle->close();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // One that can still be used.
  std::optional<Idle> try_take_quiet() {
    while (auto idle = try_take()) {
      if (idle->is_quiet()) return idle;
      idle->close();
    }
    return std::nullopt;
  }
  void put(Idle connection) {
    const bool kept = idle_.with([&](std::vector<Idle>& idle) {
      if (idle.size() >= limit_) return false;
      idle.push_back(std::move(connection));
      return true;
    });
    if (!kept) connection.close();
  }

 private:
  std::optional<Idle> try_take() {
    return idle_.with([](std::vector<Idle>& idle) -> std::optional<Idle> {
      if (idle.empty()) return std::nullopt;
      std::optional<Idle> last(std::move(idle.back()));
      idle.pop_back();
      return last;
    });
  }

  const std::size_t limit_;
  Guarded<std::vector<Idle>> idle_;
};

}  // namespace weft::http
