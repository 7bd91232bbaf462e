#include "weft/transfer/internal/blocks_body.h"

#include <utility>

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
  for (const BlockPlace& place : blocks) {
    WEFT_TRY(Encoded block, blocking_encode(from, shorthand, place));
    const bool is_plain = block.encoding == Encoding::kIdentity;
    body.payload_bytes_.at(static_cast<std::size_t>(block.encoding)) +=
        is_plain ? block.plain.size() : block.encoded.size();
    body.blocks_.push_back(std::move(block));
  }
  return body;
}

Result<ShortBody::Encoded> ShortBody::blocking_encode(const BlocksFrom& from,
                                                      const Shorthand& shorthand,
                                                      const BlockPlace& place) {
  Encoded block;
  block.scratch = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  WEFT_TRY(block.plain, from.blocking_read(place, std::span(block.scratch.get(), kBlockBytes)));
  const auto take_if_shorter = [&](Encoding encoding, std::vector<std::byte> encoded) {
    const std::size_t shortest =
        block.encoding == Encoding::kIdentity ? block.plain.size() : block.encoded.size();
    if (encoded.size() >= shortest) return;
    block.encoding = encoding;
    block.encoded = std::move(encoded);
  };
  if (shorthand.read_base) {
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(block.plain.size());
    WEFT_TRY(const auto base,
             shorthand.read_base(place, std::span(scratch.get(), block.plain.size())));
    const auto& tensors = from.source->tensors();
    const std::size_t elem_bytes =
        place.entry < tensors.size() ? dtype_size_bytes(tensors[place.entry].dtype) : 1;
    if (base) take_if_shorter(Encoding::kSparse, encode_sparse(*base, block.plain, elem_bytes));
  }
  // A sparse block is what it is: positions and values hardly shrink.
  if (shorthand.zstd && block.encoding == Encoding::kIdentity) {
    take_if_shorter(Encoding::kZstd, encode_zstd(block.plain, shorthand.zstd_level));
  }
  const bool is_plain = block.encoding == Encoding::kIdentity;
  block.frame = encode_block_frame(
      {static_cast<std::uint32_t>(place.entry), static_cast<std::uint32_t>(place.block),
       static_cast<std::uint32_t>(is_plain ? block.plain.size() : block.encoded.size()),
       static_cast<std::uint32_t>(block.encoding), from.digest_of(place, block.plain)});
  if (!is_plain) block.scratch.reset();
  return block;
}

std::vector<std::span<const std::byte>> ShortBody::parts() const {
  std::vector<std::span<const std::byte>> parts;
  for (const Encoded& block : blocks_) {
    parts.emplace_back(block.frame);
    parts.push_back(block.encoding == Encoding::kIdentity ? block.plain : block.encoded);
  }
  return parts;
}

}  // namespace weft::internal
