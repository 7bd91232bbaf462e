#include "weft/transfer/internal/blocks_body.h"

#include <utility>

#include "weft/codec/elem_kind.h"
#include "weft/protocol/block_ledger.h"

namespace weft::internal {

Result<std::span<const std::byte>> BlocksFrom::blocking_read(const BlockPlace& place,
                                                             std::span<std::byte> scratch) const {
  return source->blocking_read(place.entry, place.block * kBlockBytes,
                               scratch.first(static_cast<std::size_t>(size_of(place))));
}

std::uint64_t BlocksFrom::size_of(const BlockPlace& place) const {
  return block_length(sizes_bytes[place.entry], place.block);
}

Digest BlocksFrom::digest_of(const BlockPlace& place, std::span<const std::byte> bytes) const {
  return digests != nullptr ? (*digests)[place.entry][place.block]
                            : block_digest(sizes_bytes[place.entry], place.block, bytes);
}

PlainBody::PlainBody(const BlocksFrom& from, std::span<const BlockPlace> blocks)
    : from_(from),
      blocks_(blocks),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(kBlockBytes)) {
  for (const BlockPlace& place : blocks) content_bytes_ += from.size_of(place);
}

std::uint64_t PlainBody::size_bytes() const {
  return content_bytes_ + blocks_.size() * kBlockFrameBytes;
}

Result<std::span<const std::span<const std::byte>>> PlainBody::next() {
  const BlockPlace place = blocks_[next_++];
  const auto bytes = from_.blocking_read(place, std::span(scratch_.get(), kBlockBytes));
  if (!bytes) {
    error_ = bytes.error();
    return bytes.error();
  }
  frame_ = encode_block_frame(
      {static_cast<std::uint32_t>(place.entry), static_cast<std::uint32_t>(place.block),
       static_cast<std::uint32_t>(bytes->size()), static_cast<std::uint32_t>(Encoding::kIdentity),
       from_.digest_of(place, *bytes)});
  pieces_ = {frame_, *bytes};
  return std::span<const std::span<const std::byte>>(pieces_);
}

Result<ShortBody> ShortBody::blocking_make(const BlocksFrom& from, const Shorthand& shorthand,
                                           std::span<const BlockPlace> blocks) {
  ShortBody body;
  Scratch scratch;
  for (const BlockPlace& place : blocks) {
    WEFT_TRY(Encoded block, blocking_encode(from, shorthand, place, scratch));
    body.payload_bytes_.at(static_cast<std::size_t>(block.encoding)) += block.payload().size();
    if (needs_base(block.encoding)) body.based_.push_back(place);
    body.blocks_.push_back(std::move(block));
  }
  return body;
}

void ShortBody::Encoded::take_if_shorter(Encoding other, std::vector<std::byte> bytes) {
  if (bytes.size() >= payload().size()) return;
  encoding = other;
  encoded = std::move(bytes);
}

Result<ShortBody::Encoded> ShortBody::blocking_encode(const BlocksFrom& from,
                                                      const Shorthand& shorthand,
                                                      const BlockPlace& place, Scratch& scratch) {
  Encoded block;
  if (!scratch.plain) scratch.plain = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  WEFT_TRY(block.plain, from.blocking_read(place, std::span(scratch.plain.get(), kBlockBytes)));
  std::optional<std::span<const std::byte>> base;
  if (shorthand.read_base) {
    if (!scratch.base) scratch.base = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
    base = shorthand.read_base(place, std::span(scratch.base.get(), block.plain.size()));
  }
  if (base) {
    const ElemKind kind = elem_kind_of(from.source->tensors()[place.entry].dtype);
    if (shorthand.delta) {
      block.take_if_shorter(Encoding::kDelta, encode_delta(*base, block.plain, kind));
    } else {
      block.take_if_shorter(Encoding::kSparse,
                            encode_sparse(*base, block.plain, elem_size_bytes(kind)));
    }
  }
  // Positions and values hardly shrink, and a delta has tried zstd.
  const bool is_tried = block.encoding != Encoding::kIdentity || (base && shorthand.delta);
  if (shorthand.zstd && !is_tried)
    block.take_if_shorter(Encoding::kZstd, encode_zstd(block.plain, shorthand.zstd_level));
  block.frame = encode_block_frame(
      {static_cast<std::uint32_t>(place.entry), static_cast<std::uint32_t>(place.block),
       static_cast<std::uint32_t>(block.payload().size()),
       static_cast<std::uint32_t>(block.encoding), from.digest_of(place, block.plain)});
  if (block.plain.data() == scratch.plain.get() && block.encoding == Encoding::kIdentity)
    block.read = std::move(scratch.plain);
  return block;
}

std::vector<std::span<const std::byte>> ShortBody::parts() const {
  std::vector<std::span<const std::byte>> parts;
  for (const Encoded& block : blocks_) {
    parts.emplace_back(block.frame);
    parts.push_back(block.payload());
  }
  return parts;
}

}  // namespace weft::internal
