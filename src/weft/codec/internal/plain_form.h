#pragma once
// The body of a plain delta: docs/formats/delta.md, "Plain body".

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/base/result.h"

namespace weft::internal {

// Of elements at `positions`, ascending, that become `values`.
std::vector<std::byte> write_plain(std::span<const std::uint32_t> positions,
                                   std::span<const std::byte> values);

struct PlainStreams {
  std::vector<std::uint32_t> gaps;    // elements between one change and the next
  std::span<const std::byte> values;  // the new ones, of the body
};
// Errors: kCorrupt. Requires: `changed` is at most `elements`.
Result<PlainStreams> read_plain(std::span<const std::byte> body, std::size_t elem_bytes,
                                std::size_t elements, std::size_t changed);

}  // namespace weft::internal
