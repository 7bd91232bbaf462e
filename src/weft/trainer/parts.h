#pragma once
// What is learned from or scored, in parts that memory has room for.

#include <algorithm>
#include <cstddef>
#include <span>

namespace weft {

// Calls part(a span of `all`) for parts of about `size`, of whole groups of `together` each.
// Requires: `size` and `together` are not 0.
template <typename All, typename Part>
void in_parts(const All& all, std::size_t size, std::size_t together, Part&& part) {
  const std::span items(all);
  const std::size_t step = std::max<std::size_t>(1, size / together) * together;
  for (std::size_t at = 0; at < items.size(); at += step) {
    part(items.subspan(at, std::min(step, items.size() - at)));
  }
}

}  // namespace weft
