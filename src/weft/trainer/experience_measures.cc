#include "weft/trainer/experience_measures.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/base/check.h"
#include "weft/trainer/version_label.h"

namespace weft {
namespace {

std::uint64_t lag_of_label(const std::string& label, std::uint64_t newest) {
  const auto version = try_version_of(label);
  if (!version) return newest + 1;
  return newest - std::min(newest, *version);
}

// Of groups of `size`, those whose place in `keep` is true.
template <typename T>
void keep_groups(std::vector<T>& values, std::size_t size, const std::vector<bool>& keep) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!keep[i / size]) continue;
    if (end != i) values[end] = std::move(values[i]);
    ++end;
  }
  values.resize(end);
}

}  // namespace

std::uint64_t keep_problems(Experience& experience, const std::vector<bool>& keep) {
  WEFT_CHECK(keep.size() == experience.problems.size());
  const std::size_t before = experience.rollouts.size();
  keep_groups(experience.problems, 1, keep);
  keep_groups(experience.prompts, experience.group_size, keep);
  keep_groups(experience.rollouts, experience.group_size, keep);
  keep_groups(experience.rule_rewards, experience.group_size, keep);
  keep_groups(experience.rewards, experience.group_size, keep);
  return before - experience.rollouts.size();
}

void append_problems(Experience& to, const Experience& from, std::size_t most) {
  to.group_size = from.group_size;
  for (std::size_t i = 0; i < from.rollouts.size(); ++i) {
    if (i % from.group_size == 0) {
      if (to.problems.size() >= most) return;
      to.problems.push_back(from.problem_of(i));
    }
    to.prompts.push_back(from.prompts[i]);
    to.rollouts.push_back(from.rollouts[i]);
    to.rule_rewards.push_back(from.rule_rewards[i]);
    to.rewards.push_back(from.rewards[i]);
  }
}

std::uint64_t lag_of(const Rollout& rollout, std::uint64_t newest) {
  std::uint64_t lag = 0;
  for (const VersionSpan& span : rollout.versions) {
    lag = std::max(lag, lag_of_label(span.label, newest));
  }
  return lag;
}

std::uint64_t drop_old(Experience& experience, std::uint64_t newest, std::uint64_t max_lag) {
  std::vector<bool> keep(experience.problems.size(), true);
  for (std::size_t i = 0; i < experience.rollouts.size(); ++i) {
    if (lag_of(experience.rollouts[i], newest) > max_lag) keep[i / experience.group_size] = false;
  }
  return keep_problems(experience, keep);
}

double solved_share(std::span<const double> rewards) {
  return static_cast<double>(std::ranges::count(rewards, 1.0)) /
         static_cast<double>(rewards.size());
}

void measure_experience(const Experience& experience, std::uint64_t newest, StepMetrics& metrics) {
  std::uint64_t lags = 0;
  metrics.answers = experience.rollouts.size();
  metrics.tokens = 0;
  for (const Rollout& rollout : experience.rollouts) {
    for (const VersionSpan& span : rollout.versions) {
      const std::uint64_t lag = lag_of_label(span.label, newest);
      metrics.lag_max = std::max(metrics.lag_max, lag);
      lags += lag * (span.end - span.begin);
    }
    metrics.tokens += rollout.tokens.size();
    metrics.answers_spanning += rollout.versions.size() > 1 ? 1 : 0;
  }
  if (metrics.answers == 0) return;
  metrics.lag_mean = static_cast<double>(lags) / static_cast<double>(metrics.tokens);
  metrics.reward = std::accumulate(experience.rewards.begin(), experience.rewards.end(), 0.0) /
                   static_cast<double>(metrics.answers);
  metrics.solve_rate = solved_share(experience.rule_rewards);
}

double win_rate(std::span<const double> rewards, std::span<const double> others) {
  double wins = 0;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    if (rewards[i] > others[i]) wins += 1;
    if (rewards[i] == others[i]) wins += 0.5;
  }
  return wins / static_cast<double>(rewards.size());
}

}  // namespace weft
