#pragma once
// Labels: texts for people, docs/protocol.md.

#include <cstddef>
#include <string_view>

#include "weft/base/result.h"

namespace weft {

inline constexpr std::size_t kMaxLabelBytes = 16 << 10;

// Errors: kInvalidArgument for one that is too long or no UTF-8.
Result<void> check_label(std::string_view label);

}  // namespace weft
