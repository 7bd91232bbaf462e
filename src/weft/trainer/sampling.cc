#include "weft/trainer/sampling.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "weft/trainer/experience_measures.h"
#include "weft/trainer/grpo.h"
#include "weft/trainer/stopwatch.h"

namespace weft {
namespace {

// Sets the rewards; groups with an answer that has none are dropped, or are an error.
Result<void> blocking_add_rewards(const TrainConfig& config, Scorer& scorer, Batch& batch) {
  const ScoreCounts before = scorer.counts();
  WEFT_TRY(const auto scores, scorer.blocking_score(batch.experience));
  Experience& experience = batch.experience;
  std::vector<bool> keep(experience.problems.size(), true);
  std::size_t unscored = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    experience.rewards[i] = scores[i].value_or(0);  // which is not kept
    if (scores[i]) continue;
    keep[i / experience.group_size] = false;
    ++unscored;
  }
  if (unscored > 0 && config.score.on_failure == "stop") {
    return Error(ErrorCode::kInternal,
                 fmt::format("{} of {} answers have no score after {} retries (score.on_failure = "
                             "\"drop\" would go on without them)",
                             unscored, scores.size(), config.score.retries));
  }
  batch.metrics.dropped_unscored = keep_problems(experience, keep);
  if (experience.problems.empty()) {
    return Error(ErrorCode::kInternal, "every problem of a step has an answer without a score");
  }
  const ScoreCounts after = scorer.counts();
  batch.metrics.score_requests = after.requests - before.requests;
  batch.metrics.score_retries = after.retries - before.retries;
  return {};
}

// The next problems, answered and scored.
Result<Batch> blocking_round(Run& run, Scorer& scorer, std::uint64_t number) {
  const RlSection& rl = run.config().rl;
  auto experience = blocking_sample(
      run, run.problems().draw(rl.prompts),
      {.count = rl.group_size, .temperature = rl.temperature, .use = kRolloutSeed, .step = number});
  if (!experience) {
    return std::move(experience).error().with_context(fmt::format("sampling for step {}", number));
  }
  Batch batch{*std::move(experience), {}};
  WEFT_TRY_VOID(blocking_add_rewards(run.config(), scorer, batch));
  return batch;
}

// DAPO's dynamic sampling: groups of equal rewards make room for new ones, for some rounds. If all
// are equal in all rounds, the last are kept as they are. Source: Yu et al., "DAPO", section 3.2.
Result<void> blocking_fill(Run& run, Scorer& scorer, std::uint64_t number, Batch& batch) {
  Experience filled;
  std::uint64_t dropped = 0;
  for (std::uint64_t round = 1;; ++round) {
    Experience differing = batch.experience;
    dropped += keep_problems(differing, differing_groups(differing.rewards, differing.group_size));
    append_problems(filled, differing, run.config().rl.prompts);
    if (filled.problems.size() == run.config().rl.prompts ||
        round == run.config().grpo.dynamic_sampling_rounds) {
      break;
    }
    WEFT_TRY(Batch more, blocking_round(run, scorer, number));
    batch.experience = std::move(more.experience);
    batch.metrics.dropped_unscored += more.metrics.dropped_unscored;
    batch.metrics.score_requests += more.metrics.score_requests;
    batch.metrics.score_retries += more.metrics.score_retries;
  }
  if (filled.problems.empty()) return {};
  batch.experience = std::move(filled);
  batch.metrics.dropped_equal = dropped;
  return {};
}

}  // namespace

Result<Experience> blocking_sample(Run& run, std::vector<Problem> problems,
                                   const SamplingPlan& plan) {
  std::vector<RolloutRequest> requests;
  for (const Problem& problem : problems) {
    const std::uint64_t seed =
        derive_seed(derive_seed(run.config().seed, plan.use, plan.step), requests.size(), 0);
    requests.push_back({.prompt = Vocabulary::encode(problem.question),
                        .count = plan.count,
                        .temperature = plan.temperature,
                        .max_tokens = run.task().max_answer_tokens(),
                        .seed = seed});
  }
  WEFT_TRY(auto groups, run.servers().blocking_roll_out(requests, run.model().vocab_size));
  Experience experience;
  experience.group_size = plan.count;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (Rollout& rollout : groups[i]) {
      experience.rule_rewards.push_back(
          run.task().reward(problems[i], answer_text(rollout), rollout.ended));
      experience.prompts.push_back(requests[i].prompt);
      experience.rollouts.push_back(std::move(rollout));
    }
  }
  experience.problems = std::move(problems);
  experience.rewards = experience.rule_rewards;
  return experience;
}

std::chrono::milliseconds hold_back(const TrainConfig& config) {
  return std::chrono::milliseconds(config.fault.hold_back_ms);
}

Result<Batch> blocking_collect(Run& run, Scorer& scorer, std::uint64_t number) {
  const EngineTotals before = run.servers().blocking_engine_totals();
  const Stopwatch clock;
  const TrainConfig& config = run.config();
  run.problems().restore(derive_seed(config.seed, kProblemSeed, number));
  WEFT_TRY(Batch batch, blocking_round(run, scorer, number));
  const bool is_dynamic = config.algorithm == "grpo" && config.grpo.dynamic_sampling_rounds > 1;
  if (is_dynamic) WEFT_TRY_VOID(blocking_fill(run, scorer, number, batch));
  StepMetrics& metrics = batch.metrics;
  metrics.rollout_ms = clock.ms();
  const EngineTotals after = run.servers().blocking_engine_totals();
  const double steps = after.steps - before.steps;
  metrics.decode_step_ms = steps > 0 ? (after.seconds - before.seconds) / steps * 1e3 : 0;
  for (const Rollout& rollout : batch.experience.rollouts) metrics.tokens += rollout.tokens.size();
  metrics.answers = batch.experience.rollouts.size();
  metrics.tokens_per_s = static_cast<double>(metrics.tokens) / (metrics.rollout_ms / 1e3);
  return batch;
}

Result<Experience> SynchronousSource::blocking_next(StepMetrics& metrics) {
  const std::uint64_t step = metrics.step;
  const Stopwatch clock;
  WEFT_TRY(Batch batch, blocking_collect(run_, scorer_, step));
  std::this_thread::sleep_for(hold_back(run_.config()));
  metrics = batch.metrics;
  metrics.step = step;
  metrics.wait_ms = clock.ms();
  measure_experience(batch.experience, step - 1, metrics);
  return std::move(batch.experience);
}

Result<std::vector<double>> blocking_measure(Run& run, std::uint64_t step, StepMetrics& metrics) {
  const std::vector<Problem>& problems = run.problems().held_out();
  WEFT_TRY(const Experience greedy,
           blocking_sample(run, problems, {.temperature = 0.0, .use = kHeldOutSeed, .step = step}));
  WEFT_TRY(Experience sampled,
           blocking_sample(run, problems, {.temperature = 1.0, .use = kHeldOutSeed, .step = step}));
  metrics.greedy_solve_rate = solved_share(greedy.rule_rewards);
  metrics.sampled_solve_rate = solved_share(sampled.rule_rewards);
  WEFT_TRY_VOID(run.blocking_check_versions(sampled, step, metrics));
  return std::move(sampled.rule_rewards);
}

}  // namespace weft
