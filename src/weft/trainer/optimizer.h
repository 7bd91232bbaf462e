#pragma once
// What [sft], [reward_model] and [rl] say of AdamW and its learning rate. Pure functions.

#include <cstdint>
#include <optional>
#include <string_view>

#include "weft/trainer/config.h"
#include "weft/trainer/policy.h"

namespace weft {

enum class Schedule {
  kConstant,
  kLinear,  // 1 - (step - 1) / steps
  kCosine,  // (1 + cos(pi (step - 1) / steps)) / 2. Source: Loshchilov and Hutter, "SGDR"
};

std::optional<Schedule> try_schedule(std::string_view name);  // "constant", "linear", "cosine"

// What the learning rate is multiplied with in `step`, from 1 to `steps`: the schedule's share,
// times a linear warm-up, step / (warmup_steps + 1), at most 1. Constant rates oscillate; those
// that fall to about 0 end well.
double schedule_share(Schedule schedule, std::uint64_t step, std::uint64_t steps,
                      std::uint64_t warmup_steps);

AdamWOptions adamw_options(const OptimizerKeys& keys);
// Requires: keys.schedule is one there is.
double learning_rate_at(const OptimizerKeys& keys, std::uint64_t step, std::uint64_t steps);

}  // namespace weft
