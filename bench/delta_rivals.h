#pragma once
// What others send for the difference of two versions, as they send it, and the new version from
// that.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace weft::bench {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

// A part of two consecutive versions in bf16, of the same size.
struct Tile {
  std::span<std::uint16_t> base, next;
  std::uint64_t changed = 0;  // elements

  View base_bytes() const { return std::as_bytes(base); }
  View next_bytes() const { return std::as_bytes(next); }
};

struct Rival {
  const char* name;
  std::function<Bytes(const Tile&)> encode;
  // Fills `out`, which is as long as the tile, from the payload and tile.base.
  std::function<void(const Bytes& payload, const Tile&, std::span<std::byte> out)> decode;
};

// xor_zstd1, xor_zstd3, nemo, coo_int32, zstd_patch_from.
std::vector<Rival> make_rivals();

// Ends the program.
[[noreturn]] void fail(const std::string& what);

}  // namespace weft::bench
