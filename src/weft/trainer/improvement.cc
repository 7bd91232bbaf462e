#include "weft/trainer/improvement.h"

#include <cstring>

#include <fmt/format.h>

#include "weft/trainer/experience_measures.h"
#include "weft/trainer/optimizer.h"
#include "weft/trainer/sampling.h"
#include "weft/trainer/update.h"
#include "weft/trainer/version_label.h"

namespace weft {
namespace {

// The state of the loop is the algorithm's, with what the policy was at step 0: as the reference,
// and as what win rates are against.
class Improvement final : public StatePart {
 public:
  Improvement(Run& run, ExperienceSource& source, Algorithm& algorithm)
      : run_(run),
        config_(run.config().rl),
        source_(source),
        algorithm_(algorithm),
        reference_(algorithm.needs_reference() ? run.policy().clone() : nullptr),
        update_(run.config(), run.policy(), reference_.get(), algorithm) {}

  // The first step that is left.
  Result<std::optional<std::uint64_t>> blocking_start();
  Result<void> blocking_step(std::uint64_t step);

  void save(RunState& state) const override;
  Result<void> restore(const RunState& state) override;

 private:
  Result<void> blocking_learn(StepMetrics& metrics);
  Result<void> blocking_measure_end(StepMetrics& metrics);

  Run& run_;
  const RlSection& config_;
  ExperienceSource& source_;
  Algorithm& algorithm_;
  std::unique_ptr<Policy> reference_;
  PolicyUpdate update_;
  std::vector<double> start_rewards_;  // of version 0's sampled answers to the held-out problems
};

void Improvement::save(RunState& state) const {
  algorithm_.save(state);
  if (reference_ != nullptr) state.put("reference.", reference_->state());
  StateTensor rewards{{"rewards", DType::kF64, {start_rewards_.size()}}, {}};
  const auto bytes = std::as_bytes(std::span(start_rewards_));
  rewards.bytes.assign(bytes.begin(), bytes.end());
  state.put("start.", {std::move(rewards)});
}

Result<void> Improvement::restore(const RunState& state) {
  WEFT_TRY_VOID(algorithm_.restore(state));
  if (reference_ != nullptr) WEFT_TRY_VOID(reference_->restore(state.tensors_of("reference.")));
  const auto start = state.tensors_of("start.");
  const std::size_t count = run_.problems().held_out().size();
  if (start.size() != 1 || start[0].bytes.size() != count * sizeof(double)) {
    return Error(ErrorCode::kCorrupt, "the saved state has no start.rewards of this shape");
  }
  start_rewards_.resize(count);
  std::memcpy(start_rewards_.data(), start[0].bytes.data(), start[0].bytes.size());
  return {};
}

Result<std::optional<std::uint64_t>> Improvement::blocking_start() {
  run_.policy().reset_optimizer(adamw_options(config_));
  WEFT_TRY(const auto first, run_.begin_phase(Phase::kImprove, *this));
  if (first != 1) {
    if (first) WEFT_TRY_VOID(run_.blocking_publish_again(*first - 1));
    return first;
  }
  StepMetrics start;
  WEFT_TRY_VOID(run_.blocking_publish(0, start));
  WEFT_TRY(start_rewards_, blocking_measure(run_, 0, start));
  WEFT_TRY_VOID(run_.check_bounds(start));
  run_.summary().solve_rate_start = *start.greedy_solve_rate;
  run_.summary().sampled_solve_rate_start = *start.sampled_solve_rate;
  run_.print(fmt::format("after fine-tuning: held-out greedy {:.3f} sampled {:.3f}",
                         *start.greedy_solve_rate, *start.sampled_solve_rate));
  return first;
}

Result<void> Improvement::blocking_step(std::uint64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  Result<void> learned = blocking_learn(metrics);
  // What made a check fail is worth a line too.
  if (!learned && learned.error().code() != ErrorCode::kCorrupt) return learned;
  WEFT_TRY_VOID(run_.blocking_record(metrics, config_.steps));
  if (learned) WEFT_TRY_VOID(run_.blocking_end_step(Phase::kImprove, step, *this));
  return learned;
}

Result<void> Improvement::blocking_learn(StepMetrics& metrics) {
  const std::uint64_t step = metrics.step;
  WEFT_TRY(const Experience experience, source_.blocking_next(metrics));
  WEFT_TRY_VOID(run_.blocking_check_versions(experience, step, metrics));
  WEFT_TRY_VOID(run_.check_bounds(metrics));
  const Stopwatch clock;
  update_.learn(experience, version_label(step - 1), metrics);
  metrics.update_ms = clock.ms();
  WEFT_TRY_VOID(run_.check_finite(fmt::format("step {}", step), run_.policy(), metrics.loss,
                                  metrics.grad_norm, metrics.learning_rate));
  WEFT_TRY_VOID(run_.check_bounds(metrics));
  WEFT_TRY_VOID(run_.blocking_publish(step, metrics));
  if (step % config_.eval_every == 0 || step == config_.steps) return blocking_measure_end(metrics);
  return {};
}

Result<void> Improvement::blocking_measure_end(StepMetrics& metrics) {
  WEFT_TRY(const std::vector<double> rewards, blocking_measure(run_, metrics.step, metrics));
  metrics.win_rate = win_rate(rewards, start_rewards_);
  run_.summary().solve_rate_end = *metrics.greedy_solve_rate;
  run_.summary().sampled_solve_rate_end = *metrics.sampled_solve_rate;
  run_.summary().win_rate = metrics.win_rate;
  return run_.check_bounds(metrics);
}

}  // namespace

Result<void> blocking_improve(Run& run, ExperienceSource& source, Algorithm& algorithm) {
  Improvement improvement(run, source, algorithm);
  WEFT_TRY(const std::optional<std::uint64_t> first, improvement.blocking_start());
  const FlowSection& flow = run.config().flow;
  if (flow.asynchronous && flow.threads > 0) {
    Policy::set_threads(static_cast<unsigned>(flow.threads));
  }
  for (std::uint64_t step = first.value_or(1); step <= run.config().rl.steps; ++step) {
    WEFT_TRY_VOID(run.stop_if_asked());
    WEFT_TRY_VOID(improvement.blocking_step(step));
  }
  return run.check_discriminating_share();
}

}  // namespace weft
