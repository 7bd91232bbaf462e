#include "weft/trainer/live_view.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr std::size_t kSparkSteps = 60;

// The last values of a field, each as a bar from the least to the largest of them.
template <typename Value>
std::string spark(std::span<const StepMetrics> steps, Value&& value) {
  constexpr std::array<std::string_view, 8> kBars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto last = steps.last(std::min(steps.size(), kSparkSteps));
  double least = value(last.front()), most = least;
  for (const StepMetrics& step : last) {
    least = std::min(least, value(step));
    most = std::max(most, value(step));
  }
  std::string text;
  for (const StepMetrics& step : last) {
    const double share = most > least ? (value(step) - least) / (most - least) : 0;
    text += kBars.at(static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * 7));
  }
  return text;
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds);
  return whole < 60 ? fmt::format("{} s", whole)
                    : fmt::format("{}:{:02} min", whole / 60, whole % 60);
}

// The newest measurement on held-out problems, and where it began.
std::string held_out(const RunSummary& summary, std::span<const StepMetrics> steps) {
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (!steps[i].greedy_solve_rate) continue;
    return fmt::format("greedy {:.3f} sampled {:.3f} at step {}, from {:.3f} and {:.3f}",
                       *steps[i].greedy_solve_rate, steps[i].sampled_solve_rate.value_or(0),
                       steps[i].step, summary.solve_rate_start, summary.sampled_solve_rate_start);
  }
  return fmt::format("greedy {:.3f} sampled {:.3f} at the start", summary.solve_rate_start,
                     summary.sampled_solve_rate_start);
}

std::string named(std::string_view name, const std::optional<double>& value) {
  return value ? fmt::format("  {} {:.4f}", name, *value) : "";
}

}  // namespace

std::string live_view(const RunSummary& summary, std::span<const StepMetrics> steps,
                      std::uint64_t all, double seconds) {
  const StepMetrics& m = steps.back();
  const auto done = static_cast<double>(steps.size());
  const double left = seconds / done * static_cast<double>(all - std::min(all, m.step));
  std::uint64_t dropped = 0, lost = 0, back = 0;
  for (const StepMetrics& step : steps) {
    dropped += step.dropped_old + step.dropped_unscored;
    lost += step.servers_lost;
    back += step.servers_back;
  }
  const double length =
      m.answers == 0 ? 0 : static_cast<double>(m.tokens) / static_cast<double>(m.answers);
  return fmt::format("{}, seed {}: step {} of {}, {}, about {} left\n", summary.task, summary.seed,
                     m.step, all, duration(seconds), duration(left)) +
         fmt::format("  reward    {:.3f}  {}\n", m.reward,
                     spark(steps, [](const StepMetrics& step) { return step.reward; })) +
         fmt::format("  held out  {}\n", held_out(summary, steps)) +
         fmt::format("  policy    loss {:.4f}  gradient {:.3f}{}{}  length {:.1f}\n", m.loss,
                     m.grad_norm, named("KL", m.kl), named("entropy", m.entropy), length) +
         fmt::format(
             "  flow      {:.0f} tok/s  lag {:.2f}, at most {}  dropped {}  servers lost {}, "
             "back {}\n",
             m.tokens_per_s, m.lag_mean, m.lag_max, dropped, lost, back) +
         fmt::format("  weights   {}  sync {:.1f} ms  pause {:.0f} us  {:.2f} MB  {}\n", m.version,
                     m.sync_ms, m.pause_us, static_cast<double>(m.sync_bytes) / 1e6,
                     spark(steps, [](const StepMetrics& step) { return step.sync_ms; }));
}

}  // namespace weft
