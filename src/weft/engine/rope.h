#pragma once
// The angles of rotary position embedding.

#include <cstdint>
#include <span>
#include <vector>

#include "weft/model/config.h"

namespace weft {

// Cosines and sines for one position at a time. Immutable. In fp32 throughout, as transformers
// computes them. Source: transformers' modeling_rope_utils.
class Rope {
 public:
  Rope(const RopeConfig& config, std::uint64_t head_dim);

  // Fills cos and sin, [head_dim / 2] each. With kDynamic a position past the original length turns
  // by the frequencies of a sequence that ends with it, as in a decode step of transformers: what a
  // position gets never depends on what comes after it.
  void angles(std::uint64_t position, std::span<float> cos, std::span<float> sin) const;

 private:
  RopeConfig config_;
  std::vector<float> frequencies_;  // [head_dim / 2]
};

}  // namespace weft
