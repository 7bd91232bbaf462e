#pragma once
// The body of PUT .../blocks: frames and blocks, made while they are sent. One thread.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/codec/block_codec.h"
#include "weft/http/body.h"
#include "weft/protocol/block_frame.h"
#include "weft/protocol/push_machine.h"
#include "weft/transfer/tensor_source.h"

namespace weft::internal {

// What all bodies of one push are made from; outlives them.
struct BlocksFrom {
  const TensorSource* source = nullptr;
  std::vector<std::uint64_t> sizes_bytes;   // [entries]
  const VersionDigests* digests = nullptr;  // null: each block is hashed when its turn comes

  // Of the block's content; read into `scratch` unless it lies in memory.
  Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                   std::span<std::byte> scratch) const;
  std::uint64_t size_of(const BlockPlace& place) const;
  Digest digest_of(const BlockPlace& place, std::span<const std::byte> bytes) const;
};

// Blocks as they are. Holds one block at a time, while the bytes are still in the cache that the
// hash has just brought them to.
class PlainBody final : public http::BodySource {
 public:
  PlainBody(const BlocksFrom& from, std::span<const BlockPlace> blocks);

  std::uint64_t size_bytes() const override;
  void restart() override { next_ = 0; }
  Result<std::span<const std::span<const std::byte>>> next() override;

  // The source's, if one ended the body.
  const std::optional<Error>& error() const { return error_; }
  std::uint64_t content_bytes() const { return content_bytes_; }

 private:
  const BlocksFrom& from_;
  const std::span<const BlockPlace> blocks_;
  std::uint64_t content_bytes_ = 0;
  std::size_t next_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  std::array<std::byte, kBlockFrameBytes> frame_{};
  std::array<std::span<const std::byte>, 2> pieces_{};
  std::optional<Error> error_;
};

// What may stand for a block in place of its bytes.
struct Shorthand {
  bool zstd = false;
  int zstd_level = 1;
  // Reads the same block of the base into the scratch memory, or gives a view of it; nothing where
  // the base has no such block; it has tensors alone. Not set: there is no base.
  std::function<std::optional<std::span<const std::byte>>(const BlockPlace&, std::span<std::byte>)>
      read_base{};
  bool delta = false;  // what changed since the base as a delta, not as a sparse block
};

// Some blocks, each in its shortest encoding, encoded before the first is sent.
class ShortBody {
 public:
  // Blocks. Errors: the source's.
  static Result<ShortBody> blocking_make(const BlocksFrom& from, const Shorthand& shorthand,
                                         std::span<const BlockPlace> blocks);

  std::vector<std::span<const std::byte>> parts() const;
  // Frames not counted.
  const BytesByEncoding& payload_bytes() const { return payload_bytes_; }
  // Those that are nothing without the base.
  const std::vector<BlockPlace>& based() const { return based_; }

 private:
  struct Encoded {
    Encoding encoding = Encoding::kIdentity;
    std::array<std::byte, kBlockFrameBytes> frame{};
    std::span<const std::byte> plain{};   // identity: where it lies
    std::unique_ptr<std::byte[]> read{};  // the memory of that, unless it is the source's
    std::vector<std::byte> encoded{};

    std::span<const std::byte> payload() const {
      return encoding == Encoding::kIdentity ? plain : std::span<const std::byte>(encoded);
    }
    void take_if_shorter(Encoding other, std::vector<std::byte> bytes);
  };
  // Memory to read into, used for one block after the other.
  struct Scratch {
    std::unique_ptr<std::byte[]> plain, base;
  };
  static Result<Encoded> blocking_encode(const BlocksFrom& from, const Shorthand& shorthand,
                                         const BlockPlace& place, Scratch& scratch);

  std::vector<Encoded> blocks_;
  BytesByEncoding payload_bytes_{};
  std::vector<BlockPlace> based_;
};

}  // namespace weft::internal
