#pragma once
// Algorithm: what a policy learns from a step's experience. The loop that samples, checks, computes
// gradients and publishes is the same for all (improvement.h).

#include <cstddef>
#include <span>
#include <vector>

#include "weft/trainer/experience.h"
#include "weft/trainer/run_state.h"

namespace weft {

// The loss of some answers, a part of a step's, with its derivative.
struct AnswerLoss {
  double loss = 0;
  std::vector<float> gradient;  // [tokens of the answers], of the loss by each log-probability
  std::size_t clipped = 0;      // tokens whose ratio was cut
};

class Algorithm : public StatePart {
 public:
  // What an algorithm learns about the run itself; most learn nothing.
  void save(RunState&) const override {}
  Result<void> restore(const RunState&) override { return {}; }

  // Begins a step: fixes the advantages. Returns the answers that have a gradient. `experience`
  // stays until the step's end.
  virtual std::vector<std::size_t> prepare(const Experience& experience) = 0;
  // The loss of `answers`, whose tokens the policy gives these log-probabilities, one answer after
  // the other. All parts of a step add up to its loss.
  virtual AnswerLoss loss(const Experience& experience, std::span<const std::size_t> answers,
                          std::span<const float> logprobs) const = 0;
};

}  // namespace weft
