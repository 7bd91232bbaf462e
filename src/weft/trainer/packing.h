#pragma once
// Packing: several short sequences in one row of a batch, none of which sees another, instead of
// one row each, padded to the longest. Pure functions.

#include <cstddef>
#include <span>
#include <vector>

namespace weft {

// Rows of places in `lengths`, each row's lengths together at most `row_tokens`: first fit, longest
// first, ties in order. A sequence longer than a row has one of its own. Source: Johnson (1973),
// first fit decreasing, at most 11/9 of the least number of rows and one.
std::vector<std::vector<std::size_t>> pack_rows(std::span<const std::size_t> lengths,
                                                std::size_t row_tokens);

}  // namespace weft
