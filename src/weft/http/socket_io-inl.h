#pragma once
// Reading and writing HTTP over an Asio socket; what server.cc and client.cc share. For those two
// only.
//
// All coroutines here take references to things that outlive them: the caller awaits them in place.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "weft/base/file.h"
#include "weft/base/result.h"
#include "weft/http/server.h"
#include "weft/http/tls-inl.h"
#include "weft/http/wire.h"

namespace weft::http {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// One read or write moves at most this much.
inline constexpr std::size_t kMaxTransferBytes = 1u << 20;

inline constexpr auto kAwait = net::as_tuple(net::use_awaitable);

class Outgoing;

// A connected socket, with TLS or without, and what was read ahead of it. One thread.
struct Stream {
  explicit Stream(tcp::socket connected) : socket(std::move(connected)) {}

  std::string_view unread() const { return {input_.data() + begin_, end_ - begin_}; }
  void consume(std::size_t bytes);
  // Memory for a read of up to 16 KiB at the end of the input, and what to do after it.
  net::mutable_buffer prepare();
  void commit(std::size_t bytes);
  // Reads what is there already; would_block if there is nothing, eof at the end.
  error_code read_now();
  // With TLS only: moves what can be moved at once, or says why not, as TlsSession does.
  std::size_t read_tls(net::mutable_buffer target, error_code& failed);
  std::size_t write_tls(const Outgoing& outgoing, error_code& failed);
  // Of the message that is being read, `left_bytes` are still to come: a read that has to wait is
  // woken when many of them are there (SO_RCVLOWAT). On loopback a bulk body is received almost
  // twice as fast that way: the two ends do not wake each other for every 64 KiB. Not with TLS,
  // which takes the bytes record by record.
  void expect(std::uint64_t left_bytes);
  // Wakes a waiting read for what is there, however little. Returns: whether anything is.
  bool relax();

  tcp::socket socket;
  std::unique_ptr<TlsSession> tls;               // or null
  Clock::time_point last_active = Clock::now();  // of the last byte in or out

 private:
  std::string input_;
  std::size_t begin_ = 0;  // input before it is consumed
  std::size_t end_ = 0;    // input from it on is room for a read
  int wake_bytes_ = 1;     // SO_RCVLOWAT of the socket
};

// The TLS handshake of stream.tls. Errors: those of TlsSession::shake_hands().
net::awaitable<Result<void>> shake_hands(Stream& stream);

// Reads something into stream.unread(). Returns eof at the end.
net::awaitable<error_code> fill(Stream& stream);

// The same, holding no memory while it waits. To cancel it loses nothing.
net::awaitable<error_code> fill_when_ready(Stream& stream);

// Reads until stream.unread() starts with a whole head. Returns its size. Errors: those of
// head_size(), and kDisconnected.
net::awaitable<Result<std::size_t>> read_head(Stream& stream);

// Why reading a body ended early.
struct BodyFailure {
  enum class Cause { kConnection, kFraming, kSink };
  BodyFailure(Cause why, Error what) : cause(why), error(std::move(what)) {}
  Cause cause;
  Error error;
};

// Reads a body into `sink` without calling finish() or abort(); with a Content-Length it goes from
// the socket to the sink's memory in one step. Stops early, without failure, once `stop()`.
net::awaitable<std::optional<BodyFailure>> read_body(Stream& stream, Framing framing,
                                                     BodySink& sink,
                                                     const std::function<bool()>& stop);

// Buffers that are sent one after the other; keeps its place, so that sending can be taken up
// again.
class Outgoing {
 public:
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add(std::span<const std::byte> part) {
    if (!part.empty()) parts_.emplace_back(part.data(), part.size());
  }
  bool empty() const { return next_ == parts_.size(); }
  // The next buffers, at most kMaxTransferBytes of them.
  const std::vector<net::const_buffer>& gather();
  // The next bytes in one piece: where they lie if they fill `room`, else gathered there.
  std::span<const std::byte> piece(std::span<std::byte> room) const;
  void consume(std::size_t bytes);

 private:
  std::vector<net::const_buffer> parts_;
  std::vector<net::const_buffer> gathered_;
  std::size_t next_ = 0;
};

// Sends all of `outgoing`, calling `sent(bytes)` after each step if it is set.
net::awaitable<error_code> write_all(Stream& stream, Outgoing& outgoing,
                                     const std::function<void(std::size_t)>& sent);

// Sends a range of a file from where the kernel has it: twice as fast over loopback as reading it
// into a buffer and writing that, as TLS must. Errors: eof if the file ends before.
net::awaitable<error_code> send_file(Stream& stream, const File& file, std::uint64_t offset_bytes,
                                     std::uint64_t size_bytes);

// A sink that collects the body in memory, `limit_bytes` at most (kTooLarge beyond).
class StringSink : public BodySink {
 public:
  explicit StringSink(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  Result<std::span<std::byte>> buffer() override;
  Result<void> filled(std::size_t size) override;
  void finish() override { body_.resize(used_); }
  void abort(const Error&) override {}
  std::string take() { return std::move(body_); }

 private:
  std::uint64_t limit_bytes_;
  std::string body_;
  std::size_t used_ = 0;
};

}  // namespace weft::http
