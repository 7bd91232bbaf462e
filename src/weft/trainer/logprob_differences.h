#pragma once
// How far the trainer's log-probabilities are from those that servers gave the same tokens.

#include <cmath>
#include <cstdint>
#include <span>

#include "weft/trainer/rollout.h"

namespace weft {

struct LogprobDifferences {
  double most = 0;  // NaN once one of them was
  double mean = 0;
  std::uint64_t tokens = 0;

  // `ours` are of all of the answer's tokens; those of `span` are compared.
  void add(std::span<const double> ours, const Rollout& rollout, const VersionSpan& span) {
    for (std::size_t tok = span.begin; tok < span.end; ++tok) {
      const double difference = std::abs(ours[tok] - rollout.logprobs[tok]);
      if (std::isnan(difference) || difference > most) most = difference;
      mean += (difference - mean) / static_cast<double>(++tokens);
    }
  }
};

}  // namespace weft
