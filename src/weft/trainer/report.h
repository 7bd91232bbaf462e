#pragma once
// What a run says about itself: a line and a JSON object for each step, a summary, a plot. Pure
// functions on values. Fields named *_ms, *_us, *_s, *_per_s and `seconds` are measured times;
// everything else is a function of the config and its seed.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/trainer/version_check.h"

namespace weft {

// One GRPO step: the version that was published for it, its rollouts, the update that followed.
struct StepMetrics {
  std::uint64_t step = 0;
  std::string version;
  double reward = 0;                         // mean over the rollouts
  double solve_rate = 0;                     // share of rollouts with reward 1, sampled
  std::optional<double> greedy_solve_rate;   // held-out, where it was measured
  std::optional<double> sampled_solve_rate;  // held-out, likewise
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  double clipped_share = 0;         // of tokens
  double logprob_max_abs_diff = 0;  // trainer against server, over all sampled tokens
  std::uint64_t tokens = 0;         // sampled
  VersionCounts versions;
  std::uint64_t sync_bytes = 0;        // sent
  std::uint64_t sync_full_bytes = 0;   // of the version, once for each server
  std::uint64_t sync_delta_bytes = 0;  // of what was sent: deltas
  std::uint64_t sync_fell_back = 0;    // blocks in full because their delta was refused
  double sync_ms = 0;
  double pause_us =
      0;  // between the server's last step on the old weights and the first on the new
  double rollout_ms = 0, update_ms = 0, check_ms = 0;
  double tokens_per_s = 0;  // of the rollouts
  double decode_step_ms =
      0;  // mean of the engine's steps in the rollouts, by the server's /metrics
};

struct RunSummary {
  std::string task;
  std::uint64_t seed = 0;
  std::uint64_t sft_steps = 0;
  double solve_rate_start = 0, solve_rate_end = 0;  // greedy, held-out, through the server
  double sampled_solve_rate_start = 0, sampled_solve_rate_end = 0;  // temperature 1, likewise
  VersionCounts versions;                                           // of all checks
  double seconds = 0;                                               // of the whole run
  std::optional<std::string> failure;  // why the run's own checks failed
};

// One line for people.
std::string step_line(const StepMetrics& metrics, std::uint64_t steps);
// One JSON object, without a line end.
std::string step_json(const StepMetrics& metrics);
// One JSON object over several lines.
std::string summary_json(const RunSummary& summary, std::span<const StepMetrics> steps);
// Reward and solve rates, log-probability difference, sync time, as an SVG of its own.
std::string plot_svg(const RunSummary& summary, std::span<const StepMetrics> steps);

// The nearest-rank percentile; 0 for no values. Requires: 0 < percent <= 100.
double percentile(std::vector<double> values, double percent);

}  // namespace weft
