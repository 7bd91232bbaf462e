#include "delta_rivals.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/core.h>
#include <zstd.h>

namespace weft::bench {
namespace {

Bytes zstd(View bytes, int level) {
  Bytes out(ZSTD_compressBound(bytes.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level));
  return out;
}
Bytes unzstd(View bytes) {
  Bytes out(ZSTD_getFrameContentSize(bytes.data(), bytes.size()));
  if (ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size()) != out.size()) {
    fail("zstd");
  }
  return out;
}

void xor_into(View a, View b, std::span<std::byte> out) {
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] ^ b[i];
}

// slime, stitch, SkyRL, ModelExpress: the whole tensor, XORed, through zstd.
std::function<Bytes(const Tile&)> xor_zstd(int level) {
  return [level](const Tile& tile) {
    Bytes x(tile.next.size() * 2);
    xor_into(tile.base_bytes(), tile.next_bytes(), x);
    return zstd(x, level);
  };
}
void undo_xor_zstd(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  xor_into(unzstd(payload), tile.base_bytes(), out);
}

template <typename T>
void append(Bytes& bytes, const std::vector<T>& values) {
  const View more = std::as_bytes(std::span(values));
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// NeMo-RL: gaps in 16 bits (32 where one does not fit) and XORed values, through zstd-1.
Bytes nemo(const Tile& tile) {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint16_t> values;
  std::uint32_t last = 0, widest = 0;
  for (std::size_t i = 0; i < tile.base.size(); ++i) {
    if (tile.base[i] == tile.next[i]) continue;
    gaps.push_back(static_cast<std::uint32_t>(i) - last);
    widest = std::max(widest, gaps.back());
    last = static_cast<std::uint32_t>(i) + 1;
    values.push_back(tile.base[i] ^ tile.next[i]);
  }
  Bytes bytes(1, std::byte{widest < 65536});
  if (widest < 65536) {
    append(bytes, std::vector<std::uint16_t>(gaps.begin(), gaps.end()));
  } else {
    append(bytes, gaps);
  }
  append(bytes, values);
  return zstd(bytes, 1);
}
template <typename Gap>
void undo_gaps(View bytes, const Tile& tile, std::uint16_t* out) {
  const std::size_t count = bytes.size() / (sizeof(Gap) + 2);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i, ++at) {
    Gap gap;
    std::uint16_t value;
    std::memcpy(&gap, bytes.data() + i * sizeof(Gap), sizeof(Gap));
    std::memcpy(&value, bytes.data() + count * sizeof(Gap) + i * 2, 2);
    at += gap;
    out[at] = tile.base[at] ^ value;
  }
}
void undo_nemo(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  const Bytes bytes = unzstd(payload);
  std::memcpy(out.data(), tile.base.data(), out.size());
  auto* const elements = reinterpret_cast<std::uint16_t*>(out.data());
  const View rest = View(bytes).subspan(1);
  if (bytes[0] == std::byte{1}) {
    undo_gaps<std::uint16_t>(rest, tile, elements);
  } else {
    undo_gaps<std::uint32_t>(rest, tile, elements);
  }
}

// vLLM sparse_nccl, verl: flat positions in 32 bits and new values, as they are.
Bytes coo(const Tile& tile) {
  std::vector<std::uint32_t> positions;
  std::vector<std::uint16_t> values;
  for (std::size_t i = 0; i < tile.base.size(); ++i) {
    if (tile.base[i] == tile.next[i]) continue;
    positions.push_back(static_cast<std::uint32_t>(i));
    values.push_back(tile.next[i]);
  }
  Bytes bytes;
  append(bytes, positions);
  append(bytes, values);
  return bytes;
}
void undo_coo(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  std::memcpy(out.data(), tile.base.data(), out.size());
  const std::size_t count = payload.size() / 6;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t position;
    std::memcpy(&position, payload.data() + i * 4, 4);
    std::memcpy(out.data() + std::size_t{position} * 2, payload.data() + count * 4 + i * 2, 2);
  }
}

// zstd --patch-from: the base as a prefix that matches may lie in.
constexpr int kPatchWindowLog = 27;
Bytes patch_from(const Tile& tile) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 3);
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, kPatchWindowLog);
  ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
  const View base = tile.base_bytes(), next = tile.next_bytes();
  ZSTD_CCtx_refPrefix(context, base.data(), base.size());
  Bytes out(ZSTD_compressBound(next.size()));
  out.resize(ZSTD_compress2(context, out.data(), out.size(), next.data(), next.size()));
  ZSTD_freeCCtx(context);
  return out;
}
void undo_patch_from(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  ZSTD_DCtx* const context = ZSTD_createDCtx();
  ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, kPatchWindowLog);
  ZSTD_DCtx_refPrefix(context, tile.base.data(), tile.base.size() * 2);
  const std::size_t size =
      ZSTD_decompressDCtx(context, out.data(), out.size(), payload.data(), payload.size());
  ZSTD_freeDCtx(context);
  if (size != out.size()) fail("zstd --patch-from");
}

}  // namespace

std::vector<Rival> make_rivals() {
  return {{"xor_zstd1", xor_zstd(1), undo_xor_zstd},
          {"xor_zstd3", xor_zstd(3), undo_xor_zstd},
          {"nemo", nemo, undo_nemo},
          {"coo_int32", coo, undo_coo},
          {"zstd_patch_from", patch_from, undo_patch_from}};
}

void fail(const std::string& what) {
  fmt::print(stderr, "delta_bench: {}\n", what);
  std::exit(1);
}

}  // namespace weft::bench
