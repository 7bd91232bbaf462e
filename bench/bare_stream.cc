#include "bare_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weft::bench {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;

// A part of the memory, as a connection announces it.
struct Part {
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

Error failed(const char* call) {
  return Error(ErrorCode::kDisconnected,
               fmt::format("{}: {}", call, std::generic_category().message(errno)));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

Result<void> write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done =
        ::send(fd, bytes.data(), std::min(bytes.size(), kPieceBytes), MSG_NOSIGNAL);
    if (done <= 0) return failed("send");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

Result<void> read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::recv(fd, bytes.data(), std::min(bytes.size(), kPieceBytes), 0);
    if (done < 0) return failed("recv");
    if (done == 0) return Error(ErrorCode::kDisconnected, "the peer closed the connection");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

Result<void> receive_part(int fd, std::span<std::byte> memory) {
  Part part{};
  WEFT_TRY_VOID(read_all(fd, std::as_writable_bytes(std::span(&part, 1))));
  if (part.offset_bytes > memory.size() || part.size_bytes > memory.size() - part.offset_bytes) {
    return Error(ErrorCode::kRangeInvalid, "the part lies outside the memory");
  }
  WEFT_TRY_VOID(read_all(fd, memory.subspan(part.offset_bytes, part.size_bytes)));
  return write_all(fd, std::array{std::byte{1}});
}

Result<void> send_part(int fd, std::span<const std::byte> all, const Part& part) {
  WEFT_TRY_VOID(write_all(fd, std::as_bytes(std::span(&part, 1))));
  WEFT_TRY_VOID(write_all(fd, all.subspan(part.offset_bytes, part.size_bytes)));
  std::array<std::byte, 1> received{};
  return read_all(fd, received);
}

}  // namespace

Result<void> blocking_receive_for_ever(std::span<std::byte> memory,
                                       const std::function<void(std::uint16_t)>& listening) {
  const Socket listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.fd(), any, size) != 0 || ::listen(listener.fd(), 64) != 0 ||
      ::getsockname(listener.fd(), any, &size) != 0) {
    return failed("listen");
  }
  listening(ntohs(address.sin_port));
  std::vector<std::jthread> readers;
  for (;;) {
    Socket peer(::accept(listener.fd(), nullptr, nullptr));
    if (peer.fd() < 0) return failed("accept");
    // A part that broke off gets no byte back: the sender says so.
    readers.emplace_back(
        [memory, peer = std::move(peer)] { static_cast<void>(receive_part(peer.fd(), memory)); });
  }
}

Result<double> blocking_send_bare(std::uint16_t port, std::span<const std::byte> bytes,
                                  unsigned connections) {
  std::vector<Socket> sockets;
  for (unsigned i = 0; i < connections; ++i) {
    sockets.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = loopback(port);
    if (::connect(sockets.back().fd(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof(address)) != 0) {
      return failed("connect");
    }
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::optional<Error>> errors(connections);
  std::vector<std::thread> writers;
  for (unsigned i = 0; i < connections; ++i) {
    const std::uint64_t begin = bytes.size() * i / connections;
    const std::uint64_t end = bytes.size() * (i + 1) / connections;
    writers.emplace_back([&, i, begin, end] {
      const auto sent = send_part(sockets[i].fd(), bytes, {begin, end - begin});
      if (!sent) errors[i] = sent.error();
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto end = std::chrono::steady_clock::now();
  for (const auto& error : errors) {
    if (error) return *error;
  }
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace weft::bench
