#pragma once
// May weights that come with one config be served under another?

#include <optional>
#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/model/config.h"

namespace weft {

// A key of config.json that changes what is computed, and what two configs say there.
struct MathsDifference {
  std::string_view key;
  std::string first, second;
};
// The first one. Nothing: weights of the one may be served under the other.
std::optional<MathsDifference> try_find_difference(const ModelConfig& first,
                                                   const ModelConfig& second);

// The two must agree in all that changes what is computed; `dtype`, end tokens and the length of
// the context may differ. Errors: kConflict naming the first key that differs and both values.
Result<void> check_same_maths(const ModelConfig& served, const ModelConfig& offered);

}  // namespace weft
