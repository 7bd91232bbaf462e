#include <algorithm>
#include <array>
#include <cstring>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include "weft/http/socket_io-inl.h"

namespace weft::http {
namespace {

constexpr std::size_t kReadAheadBytes = 16u << 10;
constexpr std::size_t kTlsRecordBytes = 16u << 10;  // of data at most: RFC 8446 5.1

using Moved = std::tuple<error_code, std::size_t>;  // as Asio's reads and writes end

Error closed_in_head() {
  return Error(ErrorCode::kDisconnected, "the connection closed before the end of the head");
}

std::optional<BodyFailure> broken_body() {
  return BodyFailure(BodyFailure::Cause::kConnection,
                     Error(ErrorCode::kDisconnected, "the connection closed within the body"));
}

std::optional<BodyFailure> refused(Error error) {
  return BodyFailure(BodyFailure::Cause::kSink, std::move(error));
}

Result<std::span<std::byte>> next_room(BodySink& sink, std::uint64_t wanted_bytes) {
  WEFT_TRY(auto room, sink.buffer());
  if (room.empty()) {
    return Error(ErrorCode::kInvalidArgument, "the body is longer than it says it should be");
  }
  const std::uint64_t most = std::min<std::uint64_t>(wanted_bytes, kMaxTransferBytes);
  return room.first(static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), most)));
}

// Moves bytes by `attempt(failed)`, as soon as that would not block.
template <typename Attempt>
net::awaitable<Moved> move_tls(Stream& stream, Attempt attempt) {
  co_await net::post(stream.socket.get_executor(), net::use_awaitable);  // others have a turn
  while (true) {
    error_code failed;
    const std::size_t size = attempt(failed);
    if (failed != net::error::would_block) co_return Moved(failed, size);
    auto [cancelled] = co_await stream.socket.async_wait(stream.tls->wants(), kAwait);
    if (cancelled) co_return Moved(cancelled, 0);
  }
}

net::awaitable<Moved> receive_tls(Stream& stream, net::mutable_buffer target) {
  return move_tls(
      stream, [&stream, target](error_code& failed) { return stream.read_tls(target, failed); });
}

net::awaitable<Moved> send_tls(Stream& stream, const Outgoing& outgoing) {
  return move_tls(stream, [&stream, &outgoing](error_code& failed) {
    return stream.write_tls(outgoing, failed);
  });
}

// These two are no coroutines: without TLS what is awaited is Asio's own.
net::awaitable<Moved> receive_some(Stream& stream, net::mutable_buffer target) {
  if (stream.tls) return receive_tls(stream, target);
  return stream.socket.async_read_some(target, kAwait);
}
net::awaitable<Moved> send_some(Stream& stream, Outgoing& outgoing) {
  if (stream.tls) return send_tls(stream, outgoing);
  return stream.socket.async_write_some(outgoing.gather(), kAwait);
}

// Moves body bytes that were read ahead into the sink. Returns how many.
Result<std::size_t> take_read_ahead(Stream& stream, BodySink& sink, std::uint64_t wanted_bytes) {
  WEFT_TRY(const auto room, next_room(sink, wanted_bytes));
  const std::size_t size = std::min(room.size(), stream.unread().size());
  std::memcpy(room.data(), stream.unread().data(), size);
  stream.consume(size);
  WEFT_TRY_VOID(sink.filled(size));
  return size;
}

// Reads up to `left_bytes` of body, from what was read ahead or from the socket into the sink's
// memory; subtracts what came.
net::awaitable<std::optional<BodyFailure>> read_some(Stream& stream, BodySink& sink,
                                                     std::uint64_t& left_bytes) {
  if (!stream.unread().empty()) {
    auto taken = take_read_ahead(stream, sink, left_bytes);
    if (!taken) co_return refused(std::move(taken).error());
    left_bytes -= *taken;
    co_return std::nullopt;
  }
  auto room = next_room(sink, left_bytes);
  if (!room) co_return refused(std::move(room).error());
  const net::mutable_buffer target(room->data(), room->size());
  stream.expect(left_bytes);
  auto [failed, size] = co_await receive_some(stream, target);
  if (failed) co_return broken_body();
  stream.last_active = Clock::now();
  left_bytes -= size;
  if (left_bytes == 0) stream.expect(0);
  auto filled = sink.filled(size);
  if (!filled) co_return refused(std::move(filled).error());
  co_return std::nullopt;
}

net::awaitable<std::optional<BodyFailure>> read_chunked(Stream& stream, BodySink& sink,
                                                        const std::function<bool()>& stop) {
  ChunkScanner chunks;
  while (!stop()) {
    auto taken = chunks.take_framing(stream.unread());
    if (!taken) co_return BodyFailure(BodyFailure::Cause::kFraming, std::move(taken).error());
    stream.consume(*taken);
    if (chunks.done()) break;
    if (chunks.data_bytes() == 0) {
      const error_code failed = co_await fill(stream);
      if (failed) co_return broken_body();
      continue;
    }
    // Small chunks come together with the framing after them; only large ones are worth a read of
    // their own.
    if (stream.unread().empty() && chunks.data_bytes() < kReadAheadBytes) {
      const error_code failed = co_await fill(stream);
      if (failed) co_return broken_body();
    }
    std::uint64_t left_bytes = chunks.data_bytes();
    auto failure = co_await read_some(stream, sink, left_bytes);
    if (failure) co_return failure;
    chunks.take_data(chunks.data_bytes() - left_bytes);
  }
  co_return std::nullopt;
}

// The body ends where the connection does.
net::awaitable<std::optional<BodyFailure>> read_until_close(Stream& stream, BodySink& sink,
                                                            const std::function<bool()>& stop) {
  while (!stop()) {
    if (stream.unread().empty()) {
      const error_code failed = co_await fill(stream);
      if (failed == net::error::eof) break;
      if (failed) co_return broken_body();
    }
    std::uint64_t left_bytes = stream.unread().size();
    auto failure = co_await read_some(stream, sink, left_bytes);
    if (failure) co_return failure;
  }
  co_return std::nullopt;
}

}  // namespace

void Stream::consume(std::size_t bytes) {
  begin_ += bytes;
  if (begin_ < end_) return;
  input_ = std::string();  // an idle connection holds no buffer
  begin_ = end_ = 0;
}

net::mutable_buffer Stream::prepare() {
  if (begin_ > 0) input_.erase(0, begin_), end_ -= begin_, begin_ = 0;
  input_.resize(end_ + kReadAheadBytes);
  return net::buffer(input_.data() + end_, kReadAheadBytes);
}

void Stream::commit(std::size_t bytes) {
  if (bytes > 0) last_active = Clock::now();
  end_ += bytes;
  input_.resize(end_);
  consume(0);
}

error_code Stream::read_now() {
  const net::mutable_buffer room = prepare();
  if (tls) {
    error_code failed;
    commit(read_tls(room, failed));
    return failed;
  }
  const ssize_t size = ::recv(socket.native_handle(), room.data(), room.size(), MSG_DONTWAIT);
  const int error = errno;
  commit(size > 0 ? static_cast<std::size_t>(size) : 0);
  if (size > 0) return error_code();
  if (size == 0) return net::error::eof;
  return error_code(error, net::error::get_system_category());
}

std::size_t Stream::read_tls(net::mutable_buffer target, error_code& failed) {
  failed = net::error::operation_aborted;
  if (!socket.is_open()) return 0;  // TLS knows the descriptor, which may be another's by now
  failed = error_code();
  return tls->read(std::span(static_cast<std::byte*>(target.data()), target.size()), failed);
}

std::size_t Stream::write_tls(const Outgoing& outgoing, error_code& failed) {
  failed = net::error::operation_aborted;
  if (!socket.is_open()) return 0;
  failed = error_code();
  std::array<std::byte, kTlsRecordBytes> room;
  return tls->write(outgoing.piece(room), failed);
}

void Stream::expect(std::uint64_t left_bytes) {
  if (tls) return;
  constexpr std::uint64_t kBulkBytes = 64u << 10;  // less comes at once anyway
  constexpr std::uint64_t kWakeBytes = 1u << 20;
  const int wake_bytes =
      left_bytes < kBulkBytes ? 1 : static_cast<int>(std::min(left_bytes, kWakeBytes));
  if (wake_bytes == wake_bytes_) return;
  wake_bytes_ = wake_bytes;
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &wake_bytes, sizeof wake_bytes);
}

bool Stream::relax() {
  error_code failed;
  if (wake_bytes_ == 1 || socket.available(failed) == 0 || failed) return false;
  expect(0);  // Linux then looks at once whether there is a read to wake
  return true;
}

net::awaitable<Result<void>> shake_hands(Stream& stream) {
  while (stream.socket.is_open()) {
    auto done = stream.tls->shake_hands();
    if (!done) co_return std::move(done).error();
    if (*done) co_return Result<void>();
    auto [cancelled] = co_await stream.socket.async_wait(stream.tls->wants(), kAwait);
    if (cancelled) break;
  }
  co_return Error(ErrorCode::kDisconnected, "the connection was closed in the TLS handshake");
}

net::awaitable<error_code> fill(Stream& stream) {
  stream.expect(0);
  const net::mutable_buffer room = stream.prepare();
  auto [failed, size] = co_await receive_some(stream, room);
  stream.commit(size);
  co_return failed;
}

net::awaitable<error_code> fill_when_ready(Stream& stream) {
  error_code failed = net::error::would_block;
  while (failed == net::error::would_block) {
    if (!stream.tls || !stream.tls->has_pending()) {
      auto [cancelled] = co_await stream.socket.async_wait(tcp::socket::wait_read, kAwait);
      if (cancelled) co_return cancelled;
    }
    failed = stream.read_now();
  }
  co_return failed;
}

net::awaitable<Result<std::size_t>> read_head(Stream& stream) {
  while (true) {
    auto size = head_size(stream.unread());
    if (!size || *size > 0) co_return size;
    const error_code failed = co_await fill(stream);
    if (failed) co_return closed_in_head();
  }
}

net::awaitable<std::optional<BodyFailure>> read_body(Stream& stream, Framing framing,
                                                     BodySink& sink,
                                                     const std::function<bool()>& stop) {
  if (framing.chunked) {
    auto failure = co_await read_chunked(stream, sink, stop);
    co_return failure;
  }
  if (framing.until_close) {
    auto failure = co_await read_until_close(stream, sink, stop);
    co_return failure;
  }
  while (framing.length_bytes > 0 && !stop()) {
    auto failure = co_await read_some(stream, sink, framing.length_bytes);
    if (failure) co_return failure;
  }
  co_return std::nullopt;
}

const std::vector<net::const_buffer>& Outgoing::gather() {
  constexpr std::size_t kMaxBuffers = 64;  // as many as Asio gives to one sendmsg
  gathered_.clear();
  std::size_t left_bytes = kMaxTransferBytes;
  for (std::size_t i = next_; i < parts_.size() && left_bytes > 0; ++i) {
    if (gathered_.size() == kMaxBuffers) break;
    gathered_.push_back(net::buffer(parts_[i], left_bytes));
    left_bytes -= gathered_.back().size();
  }
  return gathered_;
}

std::span<const std::byte> Outgoing::piece(std::span<std::byte> room) const {
  const net::const_buffer first = parts_[next_];
  if (first.size() >= room.size() || next_ + 1 == parts_.size()) {
    return {static_cast<const std::byte*>(first.data()), std::min(first.size(), kMaxTransferBytes)};
  }
  std::size_t size = 0;
  for (std::size_t i = next_; i < parts_.size() && size < room.size(); ++i) {
    size += net::buffer_copy(net::buffer(room.data() + size, room.size() - size), parts_[i]);
  }
  return room.first(size);
}

void Outgoing::consume(std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t step = std::min(bytes, parts_[next_].size());
    parts_[next_] += step;
    bytes -= step;
    if (parts_[next_].size() == 0) ++next_;
  }
}

net::awaitable<error_code> write_all(Stream& stream, Outgoing& outgoing,
                                     const std::function<void(std::size_t)>& sent) {
  while (!outgoing.empty()) {
    auto [failed, size] = co_await send_some(stream, outgoing);
    if (failed) co_return failed;
    stream.last_active = Clock::now();
    outgoing.consume(size);
    if (sent) sent(size);
  }
  co_return error_code();
}

// For TLS: what is sent is not what the file has.
net::awaitable<error_code> send_file_copied(Stream& stream, const File& file,
                                            std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  constexpr std::uint64_t kPieceBytes = 256u << 10;
  std::vector<std::byte> piece;
  error_code failed;
  while (size_bytes > 0 && !failed) {
    piece.resize(static_cast<std::size_t>(std::min(size_bytes, kPieceBytes)));
    if (!file.blocking_read_at(offset_bytes, piece)) co_return net::error::eof;
    offset_bytes += piece.size();
    size_bytes -= piece.size();
    Outgoing outgoing;
    outgoing.add(std::span<const std::byte>(piece));
    failed = co_await write_all(stream, outgoing, nullptr);
  }
  co_return failed;
}

net::awaitable<error_code> send_file(Stream& stream, const File& file, std::uint64_t offset_bytes,
                                     std::uint64_t size_bytes) {
  if (stream.tls) {
    const error_code failed = co_await send_file_copied(stream, file, offset_bytes, size_bytes);
    co_return failed;
  }
  const int socket = stream.socket.native_handle();
  error_code failed;
  stream.socket.native_non_blocking(true, failed);
  auto offset = static_cast<off_t>(offset_bytes);
  const off_t end = offset + static_cast<off_t>(size_bytes);
  while (offset < end && !failed) {
    const auto step = std::min(static_cast<std::size_t>(end - offset), kMaxTransferBytes);
    const ssize_t sent = ::sendfile(socket, file.descriptor(), &offset, step);
    if (sent == 0) failed = net::error::eof;
    if (sent < 0) failed = error_code(errno, net::error::get_system_category());
    if (sent > 0) {
      stream.last_active = Clock::now();
      co_await net::post(stream.socket.get_executor(), net::use_awaitable);  // others have a turn
    } else if (failed == net::error::would_block) {
      auto [cancelled] = co_await stream.socket.async_wait(tcp::socket::wait_write, kAwait);
      failed = cancelled;
    }
    if (!stream.socket.is_open()) failed = net::error::operation_aborted;
  }
  co_return failed;
}

Result<std::span<std::byte>> StringSink::buffer() {
  constexpr std::uint64_t kStepBytes = 64u << 10;
  if (used_ == body_.size()) {
    if (used_ >= limit_bytes_) {
      return Error(ErrorCode::kTooLarge, fmt::format("the body is over {} bytes", limit_bytes_));
    }
    const std::uint64_t doubled = std::max<std::uint64_t>(kStepBytes, std::uint64_t{used_} * 2);
    body_.resize(static_cast<std::size_t>(std::min(limit_bytes_, doubled)));
  }
  return std::as_writable_bytes(std::span(body_)).subspan(used_);
}

Result<void> StringSink::filled(std::size_t size) {
  used_ += size;
  return {};
}

}  // namespace weft::http
