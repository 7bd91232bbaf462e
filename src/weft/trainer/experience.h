#pragma once
// Experience: what policies answered and what that was worth, as values; what every algorithm
// learns from. Losses are over exactly the token ids that were sampled, never over text.
//
// Two interfaces stand between the data flow and the algorithms: a Scorer turns answers into
// rewards (a rule, a reward model, a server of somebody else's), an ExperienceSource brings a
// step's experience to the loop of improvement.h (sampled after the last update, or beside it with
// a bounded lag).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/report.h"
#include "weft/trainer/rollout.h"
#include "weft/trainer/tasks.h"

namespace weft {

// Problems and `group_size` answers to each, flat: answer i belongs to problem i / group_size.
struct Experience {
  std::size_t group_size = 1;
  std::vector<Problem> problems;
  std::vector<std::vector<std::uint32_t>> prompts;  // [answers]
  std::vector<Rollout> rollouts;                    // [answers]
  std::vector<double> rule_rewards;                 // [answers] in [0, 1], by the task's own rule
  std::vector<double> rewards;                      // [answers] what is learned from

  const Problem& problem_of(std::size_t answer) const { return problems[answer / group_size]; }
};

// An answer's text, without its end token.
std::string answer_text(const Rollout& rollout);

// Sums since a scorer was made.
struct ScoreCounts {
  std::uint64_t requests = 0;  // to a scorer elsewhere; what was sent again counts again
  std::uint64_t retries = 0;   // of them
  std::uint64_t failed = 0;    // answers without a score after all retries

  bool operator==(const ScoreCounts&) const = default;
};

// Turns answers into rewards. One thread.
class Scorer {
 public:
  virtual ~Scorer() = default;

  // The reward of each answer of `experience`, whose own `rewards` are not looked at: [answers],
  // finite; nothing where there is none after all retries, never a 0 in its stead. Blocks. Errors:
  // what keeps all answers from being scored.
  virtual Result<std::vector<std::optional<double>>> blocking_score(
      const Experience& experience) = 0;
  virtual ScoreCounts counts() const { return {}; }
};

// Brings experience. Of the metrics it sets what it measured.
class ExperienceSource {
 public:
  virtual ~ExperienceSource() = default;

  // What step `metrics.step` learns from, scored; called after version step - 1 was published.
  // Tokens may come from older versions: their spans say so. Blocks. Errors: the servers' and the
  // scorer's.
  virtual Result<Experience> blocking_next(StepMetrics& metrics) = 0;
};

}  // namespace weft
