#pragma once
// How large the KV cache is, and what an engine's options become where they leave that open.

#include <cstdint>

#include "weft/base/result.h"
#include "weft/engine/engine.h"
#include "weft/kernels/attention.h"
#include "weft/model/config.h"

namespace weft {

struct CacheSize {
  kernels::KvLayout layout;
  std::uint64_t pages = 0;
};

// Replaces zeros in `options`. Errors: kInvalidArgument, kOverloaded when one sequence of
// max_model_len does not fit.
Result<CacheSize> choose_sizes(const ModelConfig& config, EngineOptions& options);

}  // namespace weft
