#include "weft/trainer/sampling.h"

#include <algorithm>
#include <numeric>

#include "weft/trainer/stopwatch.h"

namespace weft {
namespace {

double solved_share(std::span<const double> rewards) {
  return static_cast<double>(std::ranges::count(rewards, 1.0)) /
         static_cast<double>(rewards.size());
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
  WEFT_TRY(auto groups, blocking_roll_out(run.servers(), requests, run.model().vocab_size));
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

Result<std::vector<double>> RuleScorer::blocking_score(const Experience& experience) {
  return experience.rule_rewards;
}

Result<Experience> SynchronousSource::blocking_next(StepMetrics& metrics) {
  const double steps_before = run_.blocking_engine_total("weft_engine_steps_total");
  const double seconds_before = run_.blocking_engine_total("weft_engine_step_seconds_total");
  const Stopwatch clock;
  const GrpoSection& grpo = run_.config().grpo;
  WEFT_TRY(Experience experience, blocking_sample(run_, run_.problems().draw(grpo.prompts),
                                                  {.count = grpo.group_size,
                                                   .temperature = grpo.temperature,
                                                   .use = kRolloutSeed,
                                                   .step = metrics.step}));
  WEFT_TRY(experience.rewards, scorer_.blocking_score(experience));
  metrics.rollout_ms = clock.ms();
  const double engine_steps = run_.blocking_engine_total("weft_engine_steps_total") - steps_before;
  const double engine_seconds =
      run_.blocking_engine_total("weft_engine_step_seconds_total") - seconds_before;
  metrics.decode_step_ms = engine_steps > 0 ? engine_seconds / engine_steps * 1e3 : 0;
  for (const Rollout& rollout : experience.rollouts) metrics.tokens += rollout.tokens.size();
  metrics.tokens_per_s = static_cast<double>(metrics.tokens) / (metrics.rollout_ms / 1e3);
  metrics.reward = std::accumulate(experience.rewards.begin(), experience.rewards.end(), 0.0) /
                   static_cast<double>(experience.rewards.size());
  metrics.solve_rate = solved_share(experience.rule_rewards);
  return experience;
}

Result<void> blocking_measure(Run& run, std::uint64_t step, StepMetrics& metrics) {
  const std::vector<Problem>& problems = run.problems().held_out();
  WEFT_TRY(const Experience greedy,
           blocking_sample(run, problems, {.temperature = 0.0, .use = kHeldOutSeed, .step = step}));
  WEFT_TRY(const Experience sampled,
           blocking_sample(run, problems, {.temperature = 1.0, .use = kHeldOutSeed, .step = step}));
  metrics.greedy_solve_rate = solved_share(greedy.rule_rewards);
  metrics.sampled_solve_rate = solved_share(sampled.rule_rewards);
  return run.blocking_check_versions(sampled, step, metrics);
}

}  // namespace weft
