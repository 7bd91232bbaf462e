#pragma once
// May weights that come with one config be served under another?

#include "weft/base/result.h"
#include "weft/model/config.h"

namespace weft {

// The two must agree in all that changes what is computed; `dtype`, end tokens and the length of
// the context may differ. Errors: kConflict naming the first key that differs and both values.
Result<void> check_same_maths(const ModelConfig& served, const ModelConfig& offered);

}  // namespace weft
