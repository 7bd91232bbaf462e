#pragma once
// Where bodies come from and go to without being gathered in a string.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "weft/base/file.h"
#include "weft/base/result.h"

namespace weft::http {

// A piece of a body to be sent: bytes in memory, or a range of a file, which stay as they are until
// they are sent.
struct BodyPart {
  std::span<const std::byte> bytes{};  // used when `file` is null
  std::shared_ptr<const File> file{};
  std::uint64_t offset_bytes = 0;  // in `file`
  std::uint64_t size_bytes = 0;    // of the piece of `file`

  std::uint64_t size() const { return file ? size_bytes : bytes.size(); }
};

// A body that is made as it is sent. Called by the sending thread alone.
class BodySource {
 public:
  virtual ~BodySource() = default;

  virtual std::uint64_t size_bytes() const = 0;  // of the whole body
  // Back to the first byte: the request is sent (again).
  virtual void restart() = 0;
  // The next pieces, sent one after the other, not empty; they stay as they are until the next
  // call. May block. An error ends the request, and the connection with it.
  virtual Result<std::span<const std::span<const std::byte>>> next() = 0;
};

// Where a body that is received goes. Called by one thread at a time, in order; on a server that is
// the connection's I/O thread.
class BodySink {
 public:
  virtual ~BodySink() = default;

  // Memory for the next bytes of the body; not empty unless the body is complete by its own account
  // (more bytes then are an error). An error ends the message: a server answers with it and closes
  // the connection, a client closes the connection and returns it.
  virtual Result<std::span<std::byte>> buffer() = 0;
  // `size` bytes were written to the front of the last buffer().
  virtual Result<void> filled(std::size_t size) = 0;
  // The body is complete. On a server the sink answers through its Exchange, now or later.
  virtual void finish() = 0;
  // The connection broke or the framing was wrong; nothing can be answered.
  virtual void abort(const Error& error) = 0;
};

}  // namespace weft::http
