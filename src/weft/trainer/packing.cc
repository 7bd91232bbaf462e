#include "weft/trainer/packing.h"

#include <algorithm>
#include <numeric>

namespace weft {

std::vector<std::vector<std::size_t>> pack_rows(std::span<const std::size_t> lengths,
                                                std::size_t row_tokens) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t i) { return lengths[i]; });
  std::vector<std::vector<std::size_t>> rows;
  std::vector<std::size_t> used;  // [rows]
  for (const std::size_t i : order) {
    const auto fits = [&](std::size_t tokens) { return tokens + lengths[i] <= row_tokens; };
    const auto row = static_cast<std::size_t>(std::ranges::find_if(used, fits) - used.begin());
    if (row == rows.size()) {
      rows.emplace_back();
      used.push_back(0);
    }
    rows[row].push_back(i);
    used[row] += lengths[i];
  }
  return rows;
}

}  // namespace weft
