#pragma once
// What a run says about itself: a line and a JSON object for each step, and a summary. Pure
// functions on values. Fields named *_ms, *_us, *_s, *_per_s and `seconds` are measured times;
// everything else is, in the synchronous flow, a function of the config and its seed.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/logprob_differences.h"
#include "weft/trainer/version_check.h"

namespace weft {

// One step: its experience, the update that followed, the version that was published after it. What
// metrics.jsonl says of it is visit_metrics(), below.
struct StepMetrics {
  std::uint64_t step = 0;
  std::string version;
  double reward = 0;                         // mean over the rollouts
  double solve_rate = 0;                     // share of rollouts with reward 1, sampled
  std::optional<double> greedy_solve_rate;   // held-out, where it was measured
  std::optional<double> sampled_solve_rate;  // held-out, likewise
  // Held-out, sampled: better by the task's rule than what fine-tuning alone answered; a tie is
  // half.
  std::optional<double> win_rate;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  double clipped_share = 0;       // of tokens
  std::optional<double> kl;       // of the policy to its reference, nats a token
  std::optional<double> entropy;  // of the policy, nats a token
  // Trainer against server: all tokens of the newest version, and of the answers that are scored
  // again those of older ones, each by the weights of its version.
  LogprobDifferences logprobs;
  std::uint64_t answers = 0;  // sampled
  std::uint64_t tokens = 0;   // of them
  // How many versions were published between the one that a token is from and the step that learns
  // from it, over the tokens.
  double lag_mean = 0;
  std::uint64_t lag_max = 0;
  std::uint64_t answers_spanning = 0;  // that come from more than one version
  // Tokens whose importance weight, of the policy before the step to the version that sampled them,
  // was cut.
  std::uint64_t tokens_truncated = 0;
  std::uint64_t dropped_old = 0;       // answers past the bound of the lag: not learned from
  std::uint64_t dropped_unscored = 0;  // answers without a score: not learned from
  std::uint64_t dropped_equal = 0;     // answers of groups without differences, drawn again (DAPO)
  std::uint64_t score_requests = 0, score_retries = 0;  // of a scorer elsewhere
  std::uint64_t servers_lost = 0, servers_back = 0, requests_redealt = 0;
  VersionCounts versions;
  std::uint64_t sync_bytes = 0;        // sent
  std::uint64_t sync_full_bytes = 0;   // of the version, once for each server
  std::uint64_t sync_delta_bytes = 0;  // of what was sent: deltas
  std::uint64_t sync_fell_back = 0;    // blocks in full because their delta was refused
  double sync_ms = 0;
  double pause_us =
      0;  // between the server's last step on the old weights and the first on the new
  double rollout_ms = 0, update_ms = 0, check_ms = 0;
  double wait_ms = 0;       // for experience, while nothing was learned
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
  std::optional<double> win_rate;                                   // at the end, sampled, likewise
  std::optional<double> pair_accuracy;  // of a reward model, on held-out pairs
  VersionCounts versions;               // of all checks
  double seconds = 0;                   // of the whole run
  std::optional<std::string> failure;   // why the run's own checks failed
};

// Calls visit(name, field) for every field of metrics.jsonl, in its order. An optional that is
// empty is not there.
template <typename Metrics, typename Visit>
void visit_metrics(Metrics& m, Visit&& visit) {
  visit("step", m.step);
  visit("version", m.version);
  visit("reward", m.reward);
  visit("solve_rate", m.solve_rate);
  visit("greedy_solve_rate", m.greedy_solve_rate);
  visit("sampled_solve_rate", m.sampled_solve_rate);
  visit("win_rate", m.win_rate);
  visit("loss", m.loss);
  visit("grad_norm", m.grad_norm);
  visit("learning_rate", m.learning_rate);
  visit("clipped_share", m.clipped_share);
  visit("kl", m.kl);
  visit("entropy", m.entropy);
  visit("logprob_max_abs_diff", m.logprobs.most);
  visit("logprob_mean_abs_diff", m.logprobs.mean);
  visit("tokens_compared", m.logprobs.tokens);
  visit("answers", m.answers);
  visit("tokens", m.tokens);
  visit("lag_mean", m.lag_mean);
  visit("lag_max", m.lag_max);
  visit("answers_spanning", m.answers_spanning);
  visit("tokens_truncated", m.tokens_truncated);
  visit("dropped_old", m.dropped_old);
  visit("dropped_unscored", m.dropped_unscored);
  visit("dropped_equal", m.dropped_equal);
  visit("score_requests", m.score_requests);
  visit("score_retries", m.score_retries);
  visit("servers_lost", m.servers_lost);
  visit("servers_back", m.servers_back);
  visit("requests_redealt", m.requests_redealt);
  visit("tokens_checked", m.versions.checked);
  visit("tokens_with_wrong_version", m.versions.wrong);
  visit("tokens_discriminating", m.versions.discriminating);
  visit("sync_bytes", m.sync_bytes);
  visit("sync_full_bytes", m.sync_full_bytes);
  visit("sync_delta_bytes", m.sync_delta_bytes);
  visit("sync_fell_back", m.sync_fell_back);
  visit("sync_ms", m.sync_ms);
  visit("pause_us", m.pause_us);
  visit("rollout_ms", m.rollout_ms);
  visit("wait_ms", m.wait_ms);
  visit("update_ms", m.update_ms);
  visit("check_ms", m.check_ms);
  visit("tokens_per_s", m.tokens_per_s);
  visit("decode_step_ms", m.decode_step_ms);
}

// One line for people.
std::string step_line(const StepMetrics& metrics, std::uint64_t steps);
// One JSON object, without a line end.
std::string step_json(const StepMetrics& metrics);
// What step_json() wrote, doubles to 15 digits. Errors: kCorrupt naming the field.
Result<StepMetrics> parse_step_json(std::string_view json);
// One JSON object over several lines.
std::string summary_json(const RunSummary& summary, std::span<const StepMetrics> steps);

// The nearest-rank percentile; 0 for no values. Requires: 0 < percent <= 100.
double percentile(std::vector<double> values, double percent);

}  // namespace weft
