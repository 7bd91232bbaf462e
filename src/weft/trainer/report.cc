#include "weft/trainer/report.h"

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace weft {
namespace {

// An object with fields in the order in which they were added. Boost.JSON would write 0.5 as 5E-1.
class JsonObject {
 public:
  explicit JsonObject(std::string_view separator) : separator_(separator) {}

  void add(std::string_view name, double value) { raw(name, fmt::format("{}", value)); }
  void add(std::string_view name, std::uint64_t value) { raw(name, fmt::format("{}", value)); }
  void add(std::string_view name, const std::string& value) {
    raw(name, boost::json::serialize(boost::json::string(value)));
  }
  template <typename T>
  void add(std::string_view name, const std::optional<T>& value) {
    if (value) add(name, *value);
  }
  const std::string& fields() const { return fields_; }

 private:
  void raw(std::string_view name, std::string_view value) {
    fields_ += fmt::format("{}\"{}\": {}", fields_.empty() ? "" : separator_, name, value);
  }

  std::string_view separator_;
  std::string fields_;
};

std::vector<double> column(std::span<const StepMetrics> steps, double StepMetrics::*field) {
  std::vector<double> values;
  for (const StepMetrics& step : steps) values.push_back(step.*field);
  return values;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

// ---- The plot: panels one below the other, each with its own scale. ----

constexpr double kWidth = 860, kPanelHeight = 190, kLeft = 70, kRight = 20, kTop = 34, kGap = 46;

struct Series {
  std::string_view name;
  std::string_view colour;
  std::vector<std::pair<double, double>> points;
};

struct Panel {
  std::string_view title;
  bool is_logarithmic = false;
  double least = 0, most = 1;
  std::vector<Series> series;
};

std::string draw_panel(const Panel& panel, double top, double steps) {
  const double bottom = top + kPanelHeight;
  const auto x_of = [&](double x) {
    return kLeft + (kWidth - kLeft - kRight) * x / std::max(1.0, steps);
  };
  const auto scaled = [&](double y) {
    return panel.is_logarithmic ? std::log10(std::max(y, panel.least)) : y;
  };
  const double low = scaled(panel.least), high = scaled(panel.most);
  const auto y_of = [&](double y) {
    return bottom - kPanelHeight * (std::clamp(scaled(y), low, high) - low) / (high - low);
  };
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" class=\"title\">{}</text>\n", kLeft,
                                top - 12, panel.title);
  for (int tick = 0; tick <= 4; ++tick) {
    const double at = low + (high - low) * tick / 4;
    const double y = bottom - kPanelHeight * tick / 4;
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" class=\"grid\"/>\n", kLeft,
                       kWidth - kRight, y, y);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" class=\"tick\">{:.3g}</text>\n", kLeft - 8, y + 4,
                       panel.is_logarithmic ? std::pow(10, at) : at);
  }
  double legend = kWidth - kRight;
  for (const Series& series : panel.series) {
    std::string path;
    for (const auto& [x, y] : series.points)
      path += fmt::format("{:.1f},{:.1f} ", x_of(x), y_of(y));
    svg += fmt::format("<polyline points=\"{}\" stroke=\"{}\"/>\n", path, series.colour);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" class=\"legend\" style=\"fill:{}\">{}</text>\n",
                       legend, top - 12, series.colour, series.name);
    legend -= 12 + 7 * static_cast<double>(series.name.size());
  }
  return svg;
}

// The least power of ten that is no less than `value`.
double power_of_ten_above(double value) {
  return value > 0 ? std::pow(10, std::ceil(std::log10(value))) : 1;
}

std::vector<Panel> make_panels(const RunSummary& summary, std::span<const StepMetrics> steps) {
  Series greedy{"held-out, greedy", "#0b6e4f", {{0, summary.solve_rate_start}}};
  Series sampled{"held-out, sampled", "#d1603d", {{0, summary.sampled_solve_rate_start}}};
  Series reward{"reward of the step", "#9aa5b1", {}};
  Series difference{"nats", "#3d5a80", {}};
  Series sync{"sync", "#6a4c93", {}};
  Series pause{"pause of generation", "#e07a5f", {}};
  for (const StepMetrics& m : steps) {
    const auto step = static_cast<double>(m.step);
    if (m.greedy_solve_rate) greedy.points.emplace_back(step, *m.greedy_solve_rate);
    if (m.sampled_solve_rate) sampled.points.emplace_back(step, *m.sampled_solve_rate);
    reward.points.emplace_back(step, m.reward);
    difference.points.emplace_back(step, m.logprob_max_abs_diff);
    sync.points.emplace_back(step, m.sync_ms);
    pause.points.emplace_back(step, m.pause_us / 1000);
  }
  const double difference_most =
      std::ranges::max(column(steps, &StepMetrics::logprob_max_abs_diff));
  const double sync_most = std::ranges::max(column(steps, &StepMetrics::sync_ms));
  return {{"Solve rate", false, 0, 1, {reward, sampled, greedy}},
          {"Largest difference of log-probabilities, trainer and server",
           true,
           1e-7,
           std::max(1e-4, power_of_ten_above(difference_most)),
           {difference}},
          {"Weight sync, milliseconds a step", false, 0, std::max(1.0, sync_most), {sync, pause}}};
}

}  // namespace

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

std::string step_line(const StepMetrics& m, std::uint64_t steps) {
  std::string line = fmt::format(
      "step {:>{}}/{}  solved {:.3f}  reward {:.3f}  {:5.0f} tok/s  sync {:5.1f} ms  pause {:4.0f} "
      "us  "
      "{:.2f} MB  {}  logprob diff {:.1e}",
      m.step, std::to_string(steps).size(), steps, m.solve_rate, m.reward, m.tokens_per_s,
      m.sync_ms, m.pause_us, static_cast<double>(m.sync_bytes) / 1e6, m.version,
      m.logprob_max_abs_diff);
  if (m.greedy_solve_rate) {
    line += fmt::format("  | held-out greedy {:.3f} sampled {:.3f}", *m.greedy_solve_rate,
                        m.sampled_solve_rate.value_or(0));
  }
  return line;
}

std::string step_json(const StepMetrics& m) {
  JsonObject out(", ");
  out.add("step", m.step);
  out.add("version", m.version);
  out.add("reward", m.reward);
  out.add("solve_rate", m.solve_rate);
  out.add("greedy_solve_rate", m.greedy_solve_rate);
  out.add("sampled_solve_rate", m.sampled_solve_rate);
  out.add("loss", m.loss);
  out.add("grad_norm", m.grad_norm);
  out.add("learning_rate", m.learning_rate);
  out.add("clipped_share", m.clipped_share);
  out.add("logprob_max_abs_diff", m.logprob_max_abs_diff);
  out.add("tokens", m.tokens);
  out.add("tokens_checked", m.versions.checked);
  out.add("tokens_with_wrong_version", m.versions.wrong);
  out.add("tokens_discriminating", m.versions.discriminating);
  out.add("sync_bytes", m.sync_bytes);
  out.add("sync_full_bytes", m.sync_full_bytes);
  out.add("sync_delta_bytes", m.sync_delta_bytes);
  out.add("sync_fell_back", m.sync_fell_back);
  out.add("sync_ms", m.sync_ms);
  out.add("pause_us", m.pause_us);
  out.add("rollout_ms", m.rollout_ms);
  out.add("update_ms", m.update_ms);
  out.add("check_ms", m.check_ms);
  out.add("tokens_per_s", m.tokens_per_s);
  out.add("decode_step_ms", m.decode_step_ms);
  return "{" + out.fields() + "}";
}

std::string summary_json(const RunSummary& summary, std::span<const StepMetrics> steps) {
  const VersionCounts& versions = summary.versions;
  double diff = 0;
  std::uint64_t bytes = 0, full_bytes = 0, tokens = 0;
  for (const StepMetrics& step : steps) {
    diff = std::max(diff, step.logprob_max_abs_diff);
    bytes += step.sync_bytes;
    full_bytes += step.sync_full_bytes;
    tokens += step.tokens;
  }
  const double sync_s = sum(column(steps, &StepMetrics::sync_ms)) / 1000;
  const std::vector<double> pauses_us = column(steps, &StepMetrics::pause_us);
  JsonObject out(",\n  ");
  out.add("task", summary.task);
  out.add("seed", summary.seed);
  out.add("sft_steps", summary.sft_steps);
  out.add("updates", std::uint64_t{steps.size()});
  out.add("solve_rate_start", summary.solve_rate_start);
  out.add("solve_rate_end", summary.solve_rate_end);
  out.add("sampled_solve_rate_start", summary.sampled_solve_rate_start);
  out.add("sampled_solve_rate_end", summary.sampled_solve_rate_end);
  out.add("sync_share", summary.seconds > 0 ? sync_s / summary.seconds : 0.0);
  out.add("pause_ms_p50", percentile(pauses_us, 50) / 1000);
  out.add("pause_ms_p99", percentile(pauses_us, 99) / 1000);
  out.add("decode_step_ms_p50", percentile(column(steps, &StepMetrics::decode_step_ms), 50));
  const std::uint64_t updates = std::max<std::uint64_t>(1, steps.size());
  out.add("bytes_per_update", bytes / updates);
  out.add("full_bytes_per_update", full_bytes / updates);
  out.add("tokens_sampled", tokens);
  out.add("logprob_max_abs_diff", diff);
  out.add("tokens_checked", versions.checked);
  out.add("tokens_with_wrong_version", versions.wrong);
  out.add("tokens_discriminating", versions.discriminating);
  out.add("discriminating_share", versions.discriminating_share());
  out.add("seconds", summary.seconds);
  out.add("failure", summary.failure);
  return "{\n  " + out.fields() + "\n}\n";
}

std::string plot_svg(const RunSummary& summary, std::span<const StepMetrics> steps) {
  if (steps.empty()) return "";
  const std::vector<Panel> panels = make_panels(summary, steps);
  const double height = 40 + static_cast<double>(panels.size()) * (kPanelHeight + kGap) + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n"
      "<style>text{{font:12px "
      "sans-serif;fill:#333}}.title{{font-weight:bold}}.tick{{text-anchor:end}}"
      ".legend{{text-anchor:end}}.grid{{stroke:#e4e7eb}}polyline{{fill:none;stroke-width:1.6}}</"
      "style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\">weft train: {3}, seed {4}</text>\n",
      kWidth, height, kLeft, summary.task, summary.seed);
  double top = 40 + kTop;
  const double last = static_cast<double>(steps.back().step);
  for (const Panel& panel : panels) {
    svg += draw_panel(panel, top, last);
    top += kPanelHeight + kGap;
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\">step 0</text><text x=\"{}\" y=\"{}\" class=\"tick\">step "
      "{}</text>\n",
      kLeft, top - kGap + 18, kWidth - kRight, top - kGap + 18, steps.back().step);
  return svg + "</svg>\n";
}

}  // namespace weft
