#pragma once
// Algorithm: what a policy learns from a step's experience. The loop that samples, checks, computes
// gradients and publishes is the same for all (improvement.h); the formulas are in losses.h,
// advantages.h and kl.h.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "weft/trainer/config.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/kl.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"
#include "weft/trainer/run_state.h"

namespace weft {

// A step's experience with what models said of its answers before the step's first update. Lists
// are [answers][tokens].
struct StepData {
  const Experience& experience;
  // What ratios are taken to: the log-probabilities with which the tokens were sampled; or, where
  // some come from older versions, those of the policy before the update, with importance weights.
  std::vector<std::vector<double>> old_logprobs{};
  std::vector<std::vector<double>> importance{};  // empty: 1 everywhere; see Importance
  std::vector<std::vector<double>> values{};      // empty unless the algorithm needs them
  std::vector<std::vector<double>> reference{};   // log-probabilities; empty without a reference
  // Of one optimizer step, which means are over: all answers and tokens through the minibatches.
  double answers = 0, tokens = 0;

  std::size_t length(std::size_t answer) const { return experience.rollouts[answer].tokens.size(); }
};

// What is learned from: answers in units of so many that a loss needs together.
struct LearningPlan {
  std::vector<std::size_t> answers;
  std::size_t together = 1;
};

// The loss of some answers with its derivatives.
struct AnswerLoss {
  double loss = 0;
  TokenGradient gradient;
  std::size_t clipped = 0;  // tokens whose ratio was cut
};

// How what older versions sampled counts in a loss: times min(pi_before / pi_sampled, cap).
enum class Importance {
  kNone,    // nothing: the loss does not ask who sampled
  kToken,   // each by its own ratio
  kAnswer,  // all of an answer by that of the whole answer
};

// One thread.
class Algorithm : public StatePart {
 public:
  // What an algorithm learns about the run itself; most learn nothing.
  void save(RunState&) const override {}
  Result<void> restore(const RunState&) override { return {}; }

  virtual bool needs_reference() const = 0;
  virtual bool needs_values() const { return false; }
  virtual Importance importance() const { return Importance::kToken; }

  // Begins a step: fixes the advantages, and says which answers have a gradient. `data` stays until
  // the step's end. Sets metrics of its own.
  virtual LearningPlan prepare(const StepData& data, StepMetrics& metrics) = 0;
  // The loss of `answers`, whole units of the plan, whose tokens the policy now gives `scores`, one
  // answer after the other. All parts of one optimizer step add up to its loss.
  virtual AnswerLoss loss(const StepData& data, std::span<const std::size_t> answers,
                          const TokenScores& scores) const = 0;
};

// The algorithm that config.algorithm names, which must be one of those that improve a policy.
// `longest_answer`: tokens.
std::unique_ptr<Algorithm> make_algorithm(const TrainConfig& config, std::size_t longest_answer);

// Per-token values of `answers`, one after the other.
std::vector<double> gather(std::span<const std::vector<double>> lists,
                           std::span<const std::size_t> answers);
// `weights`, of the tokens of `answers`, times their importance.
std::vector<double> with_importance(const StepData& data, std::span<const std::size_t> answers,
                                    std::vector<double> weights);

}  // namespace weft
