#include "weft/trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {

std::optional<Schedule> try_schedule(std::string_view name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "linear") return Schedule::kLinear;
  if (name == "cosine") return Schedule::kCosine;
  return std::nullopt;
}

double schedule_share(Schedule schedule, std::uint64_t step, std::uint64_t steps,
                      std::uint64_t warmup_steps) {
  const double warmup =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(warmup_steps + 1));
  const double done = static_cast<double>(step - 1) / static_cast<double>(steps);
  switch (schedule) {
    case Schedule::kConstant:
      return warmup;
    case Schedule::kLinear:
      return warmup * (1 - done);
    case Schedule::kCosine:
      break;
  }
  return warmup * (1 + std::cos(std::numbers::pi * done)) / 2;
}

AdamWOptions adamw_options(const OptimizerKeys& keys) {
  return {
      .beta2 = keys.beta2, .weight_decay = keys.weight_decay, .max_grad_norm = keys.max_grad_norm};
}

double learning_rate_at(const OptimizerKeys& keys, std::uint64_t step, std::uint64_t steps) {
  return keys.learning_rate *
         schedule_share(try_schedule(keys.schedule).value(), step, steps, keys.warmup_steps);
}

}  // namespace weft
