#include "weft/format/delta_index.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>

#include <fmt/core.h>

#include "weft/base/check.h"

namespace weft {
namespace {

constexpr std::string_view kMagic = "weft-dix";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kDigestBytes = sizeof(Digest::bytes);
constexpr std::size_t kVersionAt = 8, kPacksAt = 12, kBlocksAt = 16, kZeroAt = 20, kBaseAt = 24,
                      kTargetAt = kBaseAt + kDigestBytes, kHeaderBytes = kTargetAt + kDigestBytes;
constexpr std::size_t kPackRowBytes = 4 + kDigestBytes;
constexpr std::size_t kBlockRowBytes = 12 + kDigestBytes;

Error corrupt(std::string message) {
  return {ErrorCode::kCorrupt, "delta index: " + std::move(message)};
}

void put(std::string& out, std::uint32_t number) {
  for (unsigned shift = 0; shift < 32; shift += 8) out += static_cast<char>(number >> shift);
}
void put(std::string& out, const Digest& digest) {
  for (const std::byte b : digest.bytes) out += static_cast<char>(b);
}

// Reads from the front. Requires: there is as much.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint32_t number() {
    std::uint32_t number = 0;
    for (unsigned i = 0; i < 4; ++i) number |= std::to_integer<std::uint32_t>(bytes_[i]) << 8 * i;
    bytes_ = bytes_.subspan(4);
    return number;
  }
  Digest digest() {
    Digest digest;
    std::copy_n(bytes_.begin(), kDigestBytes, digest.bytes.begin());
    bytes_ = bytes_.subspan(kDigestBytes);
    return digest;
  }

 private:
  std::span<const std::byte> bytes_;
};

// Are the blocks in order, and the packs cut as their payloads say?
Result<void> check_rows(const DeltaIndex& index) {
  std::vector<std::uint32_t> sizes_bytes(index.packs.size());
  DeltaPackCut cut;
  for (std::size_t i = 0; i < index.blocks.size(); ++i) {
    const DeltaBlock& row = index.blocks[i];
    const auto place = [](const DeltaBlock& block) { return std::pair(block.entry, block.block); };
    if (i > 0 && place(row) <= place(index.blocks[i - 1])) {
      return corrupt(fmt::format("block {} of entry {} is out of order", row.block, row.entry));
    }
    if (row.payload_bytes == 0 || row.payload_bytes > kMaxDeltaPackBytes) {
      return corrupt(fmt::format("block {} of entry {} has a payload of {} bytes, expected 1 to {}",
                                 row.block, row.entry, row.payload_bytes, kMaxDeltaPackBytes));
    }
    const std::size_t pack = cut.add(row.payload_bytes).pack;
    if (pack >= sizes_bytes.size()) {
      return corrupt(fmt::format("{} packs are not enough for the payloads", index.packs.size()));
    }
    sizes_bytes[pack] += row.payload_bytes;
  }
  for (std::size_t i = 0; i < sizes_bytes.size(); ++i) {
    if (index.packs[i].size_bytes != sizes_bytes[i] || sizes_bytes[i] == 0) {
      return corrupt(fmt::format("pack {} has {} bytes, its payloads {}", i,
                                 index.packs[i].size_bytes, sizes_bytes[i]));
    }
  }
  return {};
}

}  // namespace

DeltaPackCut::Place DeltaPackCut::add(std::uint32_t payload_bytes) {
  WEFT_CHECK(payload_bytes <= kMaxDeltaPackBytes);
  if (packs_ == 0 || payload_bytes > kMaxDeltaPackBytes - used_bytes_) {
    ++packs_;
    used_bytes_ = 0;
  }
  const Place place{packs_ - 1, used_bytes_};
  used_bytes_ += payload_bytes;
  return place;
}

std::vector<DeltaPackCut::Place> delta_payload_places(const DeltaIndex& index) {
  std::vector<DeltaPackCut::Place> places;
  places.reserve(index.blocks.size());
  DeltaPackCut cut;
  for (const DeltaBlock& row : index.blocks) places.push_back(cut.add(row.payload_bytes));
  return places;
}

std::uint64_t delta_payload_bytes(const DeltaIndex& index) {
  std::uint64_t bytes = 0;
  for (const DeltaPack& pack : index.packs) bytes += pack.size_bytes;
  return bytes;
}

std::uint64_t delta_index_bytes(std::size_t packs, std::size_t blocks) {
  return kHeaderBytes + std::uint64_t{packs} * kPackRowBytes +
         std::uint64_t{blocks} * kBlockRowBytes + kDigestBytes;
}

std::string encode_delta_index(const DeltaIndex& index) {
  WEFT_CHECK(check_rows(index).has_value());
  std::string out(kMagic);
  out.reserve(static_cast<std::size_t>(delta_index_bytes(index.packs.size(), index.blocks.size())));
  put(out, kVersion);
  put(out, static_cast<std::uint32_t>(index.packs.size()));
  put(out, static_cast<std::uint32_t>(index.blocks.size()));
  put(out, 0);
  put(out, index.base);
  put(out, index.target);
  for (const DeltaPack& pack : index.packs) {
    put(out, pack.size_bytes);
    put(out, pack.digest);
  }
  for (const DeltaBlock& row : index.blocks) {
    put(out, row.entry);
    put(out, row.block);
    put(out, row.payload_bytes);
    put(out, row.value);
  }
  put(out, digest_of(std::as_bytes(std::span(out))));
  return out;
}

Result<DeltaIndex> parse_delta_index(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kDigestBytes) {
    return corrupt(
        fmt::format("{} bytes, expected at least {}", bytes.size(), kHeaderBytes + kDigestBytes));
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return corrupt(fmt::format("does not begin with `{}`", kMagic));
  }
  if (const auto version = Reader(bytes.subspan(kVersionAt)).number(); version != kVersion) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("delta index: format version {}, expected {}", version, kVersion));
  }
  const std::size_t packs = Reader(bytes.subspan(kPacksAt)).number();
  const std::size_t blocks = Reader(bytes.subspan(kBlocksAt)).number();
  if (bytes.size() != delta_index_bytes(packs, blocks)) {
    return corrupt(fmt::format("{} bytes, {} packs and {} blocks have {}", bytes.size(), packs,
                               blocks, delta_index_bytes(packs, blocks)));
  }
  const auto covered = bytes.first(bytes.size() - kDigestBytes);
  if (Reader(bytes.last(kDigestBytes)).digest() != digest_of(covered)) {
    return corrupt("does not have the digest at its end");
  }
  if (Reader(bytes.subspan(kZeroAt)).number() != 0) return corrupt("the sixth word is not zero");
  Reader reader(bytes.subspan(kBaseAt));
  DeltaIndex index;
  index.base = reader.digest();
  index.target = reader.digest();
  index.packs.resize(packs);
  for (DeltaPack& pack : index.packs) {
    pack.size_bytes = reader.number();
    pack.digest = reader.digest();
  }
  index.blocks.resize(blocks);
  for (DeltaBlock& row : index.blocks) {
    row.entry = reader.number();
    row.block = reader.number();
    row.payload_bytes = reader.number();
    row.value = reader.digest();
  }
  WEFT_TRY_VOID(check_rows(index));
  return index;
}

}  // namespace weft
