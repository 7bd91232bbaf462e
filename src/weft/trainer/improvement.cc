#include "weft/trainer/improvement.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "weft/trainer/sampling.h"
#include "weft/trainer/version_label.h"

namespace weft {
namespace {

class Improvement {
 public:
  Improvement(Run& run, ExperienceSource& source, Algorithm& algorithm)
      : run_(run), config_(run.config().grpo), source_(source), algorithm_(algorithm) {}

  // The first step that is left.
  Result<std::optional<std::uint64_t>> blocking_start();
  Result<void> blocking_step(std::uint64_t step);

 private:
  Result<void> blocking_learn(StepMetrics& metrics);
  Result<void> update(const Experience& experience, StepMetrics& metrics);
  void pass(const Experience& experience, std::span<const std::size_t> answers, bool is_learned,
            StepMetrics& metrics);
  void compare(const Experience& experience, std::span<const std::size_t> answers,
               std::span<const float> logprobs, StepMetrics& metrics);

  Run& run_;
  const GrpoSection& config_;
  ExperienceSource& source_;
  Algorithm& algorithm_;
  double difference_sum_ = 0;   // of log-probabilities, of this step
  std::uint64_t compared_ = 0;  // tokens
};

Result<std::optional<std::uint64_t>> Improvement::blocking_start() {
  run_.policy().reset_optimizer({.max_grad_norm = config_.max_grad_norm});
  WEFT_TRY(const auto first, run_.begin_phase(Phase::kImprove, algorithm_));
  if (first != 1) {
    if (first) WEFT_TRY_VOID(run_.blocking_publish_again(*first - 1));
    return first;
  }
  StepMetrics start;
  WEFT_TRY_VOID(run_.blocking_publish(0, start));
  WEFT_TRY_VOID(blocking_measure(run_, 0, start));
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
  if (learned) WEFT_TRY_VOID(run_.blocking_end_step(Phase::kImprove, step, algorithm_));
  return learned;
}

Result<void> Improvement::blocking_learn(StepMetrics& metrics) {
  const std::uint64_t step = metrics.step;
  WEFT_TRY(const Experience experience, source_.blocking_next(metrics));
  WEFT_TRY_VOID(run_.blocking_check_versions(experience, step, metrics));
  WEFT_TRY_VOID(run_.check_bounds(metrics));
  const Stopwatch clock;
  WEFT_TRY_VOID(update(experience, metrics));
  metrics.update_ms = clock.ms();
  WEFT_TRY_VOID(run_.check_bounds(metrics));
  WEFT_TRY_VOID(run_.blocking_publish(step, metrics));
  if (step % config_.eval_every == 0 || step == config_.steps) {
    WEFT_TRY_VOID(blocking_measure(run_, step, metrics));
    run_.summary().solve_rate_end = *metrics.greedy_solve_rate;
    run_.summary().sampled_solve_rate_end = *metrics.sampled_solve_rate;
    WEFT_TRY_VOID(run_.check_bounds(metrics));
  }
  return {};
}

Result<void> Improvement::update(const Experience& experience, StepMetrics& metrics) {
  difference_sum_ = 0;
  compared_ = 0;
  const std::vector<std::size_t> learned = algorithm_.prepare(experience);
  // Answers without a gradient are scored for the check alone.
  std::vector<bool> is_learned(experience.rollouts.size());
  for (const std::size_t i : learned) is_learned[i] = true;
  std::vector<std::size_t> scored;
  for (std::size_t i = 0; i < is_learned.size(); ++i) {
    if (!is_learned[i]) scored.push_back(i);
  }
  for (const bool with_gradient : {true, false}) {
    std::span<const std::size_t> left = with_gradient ? learned : scored;
    while (!left.empty()) {
      const auto part = left.first(std::min<std::size_t>(left.size(), config_.micro_batch));
      left = left.subspan(part.size());
      pass(experience, part, with_gradient, metrics);
    }
  }
  metrics.logprob_mean_abs_diff =
      compared_ == 0 ? 0 : difference_sum_ / static_cast<double>(compared_);
  const auto step = static_cast<double>(metrics.step), steps = static_cast<double>(config_.steps);
  const double warmup = step / static_cast<double>(config_.warmup_steps + 1);
  metrics.clipped_share /= static_cast<double>(metrics.tokens);
  metrics.learning_rate = config_.learning_rate * std::min(1.0, warmup) * (1 - (step - 1) / steps);
  metrics.grad_norm = learned.empty() ? 0 : run_.policy().step(metrics.learning_rate);
  return run_.check_finite(fmt::format("step {}", metrics.step), metrics.loss, metrics.grad_norm,
                           metrics.learning_rate);
}

// The trainer's log-probabilities of `answers` against the servers', and the gradient if they are
// learned from.
void Improvement::pass(const Experience& experience, std::span<const std::size_t> answers,
                       bool is_learned, StepMetrics& metrics) {
  std::vector<TokenSequence> sequences;
  for (const std::size_t i : answers) {
    sequences.push_back({experience.prompts[i], experience.rollouts[i].tokens});
  }
  std::vector<float> logprobs;
  if (is_learned) {
    logprobs = run_.policy().forward(sequences);
    const AnswerLoss loss = algorithm_.loss(experience, answers, logprobs);
    run_.policy().backward(loss.gradient);
    metrics.loss += loss.loss;
    metrics.clipped_share += static_cast<double>(loss.clipped);
  } else {
    logprobs = run_.policy().score(sequences).logprobs;
  }
  compare(experience, answers, logprobs, metrics);
}

// Only what the newest version sampled: that is what the trainer computes with.
void Improvement::compare(const Experience& experience, std::span<const std::size_t> answers,
                          std::span<const float> logprobs, StepMetrics& metrics) {
  const std::string newest = version_label(metrics.step - 1);
  std::size_t begin = 0;
  for (const std::size_t i : answers) {
    const Rollout& rollout = experience.rollouts[i];
    for (const VersionSpan& span : rollout.versions) {
      if (span.label != newest) continue;
      for (std::size_t tok = span.begin; tok < span.end; ++tok) {
        const double difference =
            std::abs(static_cast<double>(logprobs[begin + tok]) - rollout.logprobs[tok]);
        // A comparison that NaN fails would hide it.
        if (!(difference <= metrics.logprob_max_abs_diff))
          metrics.logprob_max_abs_diff = difference;
        difference_sum_ += difference;
        ++compared_;
      }
    }
    begin += rollout.tokens.size();
  }
}

}  // namespace

Result<void> blocking_improve(Run& run, ExperienceSource& source, Algorithm& algorithm) {
  Improvement improvement(run, source, algorithm);
  WEFT_TRY(const std::optional<std::uint64_t> first, improvement.blocking_start());
  for (std::uint64_t step = first.value_or(1); step <= run.config().grpo.steps; ++step) {
    WEFT_TRY_VOID(run.stop_if_asked());
    WEFT_TRY_VOID(improvement.blocking_step(step));
  }
  return run.check_discriminating_share();
}

}  // namespace weft
