// What a push says it brings, and the blocks that it sends.

#include <algorithm>

#include "weft/sim/internal/block_body.h"
#include "weft/sim/internal/receiver.h"

namespace weft::sim {
namespace {

std::span<const std::byte> bytes_of(const Cells& cells) {
  return std::as_bytes(std::span(cells));
}

Digest skeleton_of(const Offer& offer) {
  std::string text = offer.base ? offer.base->id() : "";
  for (const std::size_t entry : offer.sent()) text += static_cast<char>('a' + entry);
  if (offer.announced) text += offer.content->id();
  return digest_of(std::as_bytes(std::span(text)));
}

}  // namespace

std::vector<std::size_t> Offer::sent() const {
  std::vector<std::size_t> sent_entries;
  for (std::size_t entry = 0; entry < Model::get().entries(); ++entry) {
    if (sends(entry)) sent_entries.push_back(entry);
  }
  return sent_entries;
}

bool Offer::is_partial() const {
  for (std::size_t entry = 0; entry < Model::get().file_entry(); ++entry) {
    if (!sends(entry)) return true;
  }
  return false;
}

UploadOffer Offer::on_the_wire() const {
  const Model& model = Model::get();
  UploadOffer offer;
  for (const std::size_t entry : sent()) {
    if (entry == model.file_entry()) {
      offer.files.push_back({Model::kFileName, model.entry_bytes(entry)});
    } else {
      offer.tensors.push_back(model.layout()->tensors()[entry]);
    }
    offer.blocks.push_back(announced ? content->version->blocks[entry] : std::vector<Digest>());
  }
  if (base) offer.base = base->id();
  offer.partial = is_partial();
  offer.replace = replace;
  offer.skeleton = skeleton_of(*this);
  return offer;
}

SentBlock block_to_send(const Offer& offer, const BlockPlace& place, Encoding encoding) {
  const Model& model = Model::get();
  const BlockPlace own{offer.sent().at(place.entry), place.block};
  const Cells& cells = offer.content->cells[model.index_of(own)];
  BlockFrame frame;
  frame.tensor = static_cast<std::uint32_t>(place.entry);
  frame.block = static_cast<std::uint32_t>(place.block);
  frame.digest = offer.content->digest(own);
  std::vector<std::byte> payload(bytes_of(cells).begin(), bytes_of(cells).end());
  if (needs_base(encoding) && offer.base && own.entry != model.file_entry()) {
    frame.encoding = static_cast<std::uint32_t>(encoding);
    payload = changes_between(encoding, offer.base->cells[model.index_of(own)], cells);
  }
  frame.length_bytes = static_cast<std::uint32_t>(payload.size());
  return {frame, std::move(payload)};
}

}  // namespace weft::sim
