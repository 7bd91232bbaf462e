// The state of a run on disk, out/state.safetensors, and the way back from it.

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "weft/trainer/run.h"
#include "weft/trainer/save.h"

namespace weft {
namespace {

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kFineTune:
      return "fine-tuning";
    case Phase::kReward:
      return "reward model";
    case Phase::kImprove:
      return "improvement";
  }
  return "";
}

// All of a config that decides what a run computes.
std::string deciding_config(TrainConfig config) {
  config.out.clear();
  config.server = {};
  config.state = {};
  return train_config_toml(config);
}

// The first line in which two texts differ, of the second one.
std::string_view first_difference(std::string_view before, std::string_view now) {
  while (!now.empty()) {
    const auto line = now.substr(0, now.find('\n'));
    if (before.substr(0, before.find('\n')) != line) return line;
    before.remove_prefix(std::min(before.size(), line.size() + 1));
    now.remove_prefix(std::min(now.size(), line.size() + 1));
  }
  return "";
}

// The numbers of a summary that later steps do not tell.
template <typename Summary, typename Visit>
void visit_summary(Summary& summary, Visit&& visit) {
  visit("summary.sft_steps", summary.sft_steps);
  visit("summary.solve_rate_start", summary.solve_rate_start);
  visit("summary.solve_rate_end", summary.solve_rate_end);
  visit("summary.sampled_solve_rate_start", summary.sampled_solve_rate_start);
  visit("summary.sampled_solve_rate_end", summary.sampled_solve_rate_end);
  visit("summary.checked", summary.versions.checked);
  visit("summary.wrong", summary.versions.wrong);
  visit("summary.discriminating", summary.versions.discriminating);
}

Result<void> read(const RunState& state, const std::string& name, double& value) {
  WEFT_TRY(value, state.number(name));
  return {};
}
Result<void> read(const RunState& state, const std::string& name, std::uint64_t& value) {
  WEFT_TRY(value, state.integer(name));
  return {};
}

}  // namespace

Result<void> Run::blocking_open_books() {
  const std::filesystem::path state = out_ / "state.safetensors", metrics = out_ / "metrics.jsonl";
  if (!environment_.resume) {
    // A state of the run before this one would be resumed in its stead.
    std::error_code error;
    std::filesystem::remove(state, error);
    WEFT_TRY(metrics_file_, MetricsFile::blocking_create(metrics));
    return {};
  }
  auto saved = blocking_load_state(state);
  if (!saved && saved.error().code() == ErrorCode::kNotFound) {
    print(fmt::format("{} has no saved state yet: the run begins anew", out_.string()));
    WEFT_TRY(metrics_file_, MetricsFile::blocking_create(metrics));
    return {};
  }
  if (!saved) return std::move(saved).error();
  WEFT_TRY(const std::string config, saved->text("config"));
  if (const std::string now = deciding_config(config_); config != now) {
    return Error(ErrorCode::kConflict,
                 fmt::format("{} is the state of a run with another config; it did not say `{}`",
                             state.string(), first_difference(config, now)));
  }
  WEFT_TRY(const std::uint64_t count, saved->integer("recorded"));
  WEFT_TRY(metrics_file_, MetricsFile::blocking_reopen(metrics, count));
  resumed_ = std::move(*saved);
  return {};
}

Result<std::optional<std::uint64_t>> Run::begin_phase(Phase phase, StatePart& part) {
  std::optional<std::uint64_t> first = 1;
  if (!resumed_) return first;
  WEFT_TRY(const std::uint64_t saved_phase, resumed_->integer("phase"));
  if (saved_phase > static_cast<std::uint64_t>(phase)) return std::optional<std::uint64_t>();
  WEFT_TRY(const std::uint64_t step, resumed_->integer("step"));
  WEFT_TRY_VOID(restore(*resumed_));
  WEFT_TRY_VOID(part.restore(*resumed_));
  if (phase == Phase::kImprove) {
    WEFT_TRY_VOID(sync_->restore(step - 1, resumed_->tensors_of("published.")));
  }
  print(fmt::format("goes on after step {} of {}", step, phase_name(phase)));
  resumed_.reset();
  first = step + 1;
  return first;
}

Result<void> Run::restore(const RunState& state) {
  WEFT_TRY_VOID(policy_->restore(state.tensors_of("policy.")));
  WEFT_TRY(const std::uint64_t random, state.integer("problems"));
  problems_->restore(random);
  WEFT_TRY(seconds_before_, state.number("seconds"));
  Result<void> summary;
  visit_summary(summary_, [&](const std::string& name, auto& value) {
    if (summary) summary = read(state, name, value);
  });
  WEFT_TRY_VOID(std::move(summary));
  for (const std::string& line : metrics_file_->lines()) {
    WEFT_TRY(steps_.emplace_back(), parse_step_json(line));
  }
  return {};
}

RunState Run::state_after(Phase phase, std::uint64_t step) const {
  RunState state;
  state.values["config"] = deciding_config(config_);
  state.put("phase", static_cast<std::uint64_t>(phase));
  state.put("step", step);
  state.put("recorded", std::uint64_t{steps_.size()});
  state.put("problems", problems_->random_state());
  state.put("seconds", seconds_before_ + clock_.seconds());
  visit_summary(summary_, [&](const std::string& name, auto value) { state.put(name, value); });
  state.put("policy.", policy_->state());
  if (phase == Phase::kImprove) state.put("published.", sync_->state());
  return state;
}

Result<void> Run::blocking_end_step(Phase phase, std::uint64_t step, const StatePart& part) {
  if (step % config_.state.save_every != 0) return {};
  RunState state = state_after(phase, step);
  part.save(state);
  const auto saving = [&](Error error) {
    return std::move(error).with_context(fmt::format("saving after step {}", step));
  };
  if (auto synced = metrics_file_->blocking_sync(); !synced) return saving(synced.error());
  auto saved = blocking_save_state(out_ / "state.safetensors", state);
  if (!saved) return saving(saved.error());
  WEFT_TRY(const auto weights, sync_->weights_of(*policy_));
  saved = blocking_save_model(out_ / "checkpoint", model_json_, *weights);
  if (!saved) return saving(saved.error());
  return {};
}

}  // namespace weft
