#pragma once
// What the ranges of single keys cannot say of a config.

#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/config.h"

namespace weft {

// Errors: kInvalidArgument naming keys that contradict each other, a task without data, a word that
// is none of those there are.
Result<void> check_config(const TrainConfig& config);

// "; did you mean `x`?" when a known word is near, else "".
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace weft
