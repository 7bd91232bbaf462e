#pragma once
// What experience says of itself: how old it is (its tokens name the versions that sampled them)
// and what it is worth. Pure functions on values.

#include <cstdint>
#include <span>
#include <vector>

#include "weft/trainer/experience.h"
#include "weft/trainer/report.h"

namespace weft {

// Keeps the problems, with all their answers, whose place in `keep` is true. Returns how many
// answers went. Requires: one `keep` for each problem.
std::uint64_t keep_problems(Experience& experience, const std::vector<bool>& keep);

// Adds the problems of `from`, with all their answers, until there are `most`. Requires: groups of
// one size, unless `to` is empty.
void append_problems(Experience& to, const Experience& from, std::size_t most);

// Versions between the oldest one that sampled a token of `rollout` and `newest`; one that no run
// published counts as older than all.
std::uint64_t lag_of(const Rollout& rollout, std::uint64_t newest);

// Drops the problems of which an answer is older than `max_lag` versions before `newest`: groups
// stay whole. Returns how many answers went.
std::uint64_t drop_old(Experience& experience, std::uint64_t newest, std::uint64_t max_lag);

// Sets what follows from the experience that is learned from: rewards, answers, tokens, lags.
void measure_experience(const Experience& experience, std::uint64_t newest, StepMetrics& metrics);
// The share of rewards that are 1.
double solved_share(std::span<const double> rewards);
// The share of rewards that are higher than those at their places in `others`; a tie is half.
double win_rate(std::span<const double> rewards, std::span<const double> others);

}  // namespace weft
