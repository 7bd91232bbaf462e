#include "weft/trainer/plot.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace weft {
namespace {

constexpr double kWidth = 860, kPanelHeight = 190, kLeft = 70, kRight = 20, kTop = 34, kGap = 46;
constexpr double kPanelStride = kPanelHeight + kGap;

struct Series {
  std::string_view name;
  std::string_view colour;
  std::vector<std::pair<double, double>> points;
};

struct Panel {
  std::string_view title;
  bool is_logarithmic = false;
  double least = 0;
  std::optional<double> most;  // nothing: as high as the highest point
  std::vector<Series> series;
};

std::string draw_panel(const Panel& panel, double top, double steps) {
  const double bottom = top + kPanelHeight;
  double most = panel.least;
  for (const Series& series : panel.series) {
    for (const auto& point : series.points) most = std::max(most, point.second);
  }
  most = std::max(panel.most.value_or(most), panel.least * 10);
  if (most <= panel.least) most = panel.least + 1;
  const auto x_of = [&](double x) {
    return kLeft + (kWidth - kLeft - kRight) * x / std::max(1.0, steps);
  };
  const auto scaled = [&](double y) {
    return panel.is_logarithmic ? std::log10(std::max(y, panel.least)) : y;
  };
  const double low = scaled(panel.least);
  const double high = panel.is_logarithmic ? std::ceil(scaled(most)) : most;
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

// One point for each step that has a value: `value(step)` is a number or an optional one.
template <typename Value>
Series series_of(std::string_view name, std::string_view colour, std::span<const StepMetrics> steps,
                 Value&& value) {
  Series series{name, colour, {}};
  for (const StepMetrics& step : steps) {
    const std::optional<double> y = value(step);
    if (y) series.points.emplace_back(static_cast<double>(step.step), *y);
  }
  return series;
}

constexpr std::string_view kGreen = "#0b6e4f", kOrange = "#d1603d", kGrey = "#9aa5b1",
                           kBlue = "#3d5a80", kViolet = "#6a4c93", kRed = "#e07a5f";

Panel solve_rates(const RunSummary& summary, std::span<const StepMetrics> steps) {
  Series greedy = series_of("held-out, greedy", kGreen, steps,
                            [](const StepMetrics& m) { return m.greedy_solve_rate; });
  Series sampled = series_of("held-out, sampled", kOrange, steps,
                             [](const StepMetrics& m) { return m.sampled_solve_rate; });
  greedy.points.insert(greedy.points.begin(), {0, summary.solve_rate_start});
  sampled.points.insert(sampled.points.begin(), {0, summary.sampled_solve_rate_start});
  Series solved =
      series_of("of the step", kGrey, steps, [](const StepMetrics& m) { return m.solve_rate; });
  return {"Solve rate", false, 0, 1, {std::move(solved), std::move(sampled), std::move(greedy)}};
}

Panel differences(std::span<const StepMetrics> steps) {
  return {"Largest difference of log-probabilities, trainer and server",
          true,
          1e-7,
          {},
          {series_of("nats", kBlue, steps, [](const StepMetrics& m) { return m.logprobs.most; })}};
}

Panel sync_times(std::span<const StepMetrics> steps) {
  return {"Weight sync, milliseconds a step",
          false,
          0,
          {},
          {series_of("sync", kViolet, steps, [](const StepMetrics& m) { return m.sync_ms; }),
           series_of("pause of generation", kRed, steps,
                     [](const StepMetrics& m) { return m.pause_us / 1000; })}};
}

std::vector<Panel> learning_panels(std::span<const StepMetrics> steps) {
  return {{"Reward, mean of the step",
           false,
           0,
           {},
           {series_of("reward", kGreen, steps, [](const StepMetrics& m) { return m.reward; })}},
          {"KL to the reference, nats a token",
           false,
           0,
           {},
           {series_of("KL", kBlue, steps, [](const StepMetrics& m) { return m.kl; })}},
          {"Entropy, nats a token",
           false,
           0,
           {},
           {series_of("entropy", kViolet, steps, [](const StepMetrics& m) { return m.entropy; })}},
          {"Length of answers, tokens",
           false,
           0,
           {},
           {series_of("mean", kOrange, steps, [](const StepMetrics& m) {
             return m.answers == 0 ? std::nullopt
                                   : std::optional(static_cast<double>(m.tokens) /
                                                   static_cast<double>(m.answers));
           })}}};
}

std::vector<Panel> flow_panels(std::span<const StepMetrics> steps) {
  return {{"Lag: versions between sampling and learning",
           false,
           0,
           {},
           {series_of("mean", kGreen, steps, [](const StepMetrics& m) { return m.lag_mean; }),
            series_of("largest", kOrange, steps,
                      [](const StepMetrics& m) { return static_cast<double>(m.lag_max); })}},
          {"Bytes sent for an update",
           false,
           0,
           {},
           {series_of("sent", kBlue, steps,
                      [](const StepMetrics& m) { return static_cast<double>(m.sync_bytes); }),
            series_of("of the weights", kGrey, steps, [](const StepMetrics& m) {
              return static_cast<double>(m.sync_full_bytes);
            })}}};
}

std::string draw(std::span<const Panel> panels, std::string_view title, double last_step) {
  const double height = 40 + static_cast<double>(panels.size()) * kPanelStride + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\">\n"
      "<style>text{{font:12px "
      "sans-serif;fill:#333}}.title{{font-weight:bold}}.tick{{text-anchor:end}}"
      ".legend{{text-anchor:end}}.grid{{stroke:#e4e7eb}}polyline{{fill:none;stroke-width:1.6}}</"
      "style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\">{3}</text>\n",
      kWidth, height, kLeft, title);
  double top = 40 + kTop;
  for (const Panel& panel : panels) {
    svg += draw_panel(panel, top, last_step);
    top += kPanelStride;
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\">step 0</text><text x=\"{}\" y=\"{}\" class=\"tick\">step "
      "{}</text>\n",
      kLeft, top - kGap + 18, kWidth - kRight, top - kGap + 18, last_step);
  return svg + "</svg>\n";
}

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char character : text) {
    switch (character) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      default:
        escaped.push_back(character);
    }
  }
  return escaped;
}

// The summary's fields as rows of a table.
std::string summary_rows(const RunSummary& summary, std::span<const StepMetrics> steps) {
  std::string rows;
  const boost::json::value json = boost::json::parse(summary_json(summary, steps));
  for (const auto& [name, value] : json.get_object()) {
    std::string text = value.is_double() ? fmt::format("{:.6g}", value.get_double())
                                         : boost::json::serialize(value);
    rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", html_text(name), html_text(text));
  }
  return rows;
}

std::string title_of(const RunSummary& summary) {
  return fmt::format("weft train: {}, seed {}", summary.task, summary.seed);
}

}  // namespace

std::string plot_svg(const RunSummary& summary, std::span<const StepMetrics> steps) {
  if (steps.empty()) return "";
  const std::vector<Panel> panels{solve_rates(summary, steps), differences(steps),
                                  sync_times(steps)};
  return draw(panels, html_text(title_of(summary)), static_cast<double>(steps.back().step));
}

std::string report_html(const RunSummary& summary, std::span<const StepMetrics> steps,
                        std::string_view config) {
  std::vector<Panel> panels{solve_rates(summary, steps)};
  std::ranges::move(learning_panels(steps), std::back_inserter(panels));
  std::ranges::move(flow_panels(steps), std::back_inserter(panels));
  panels.push_back(sync_times(steps));
  panels.push_back(differences(steps));
  // A plot without a point (no KL where there is no reference) says nothing.
  std::erase_if(panels, [](const Panel& panel) {
    return std::ranges::all_of(panel.series, [](const Series& s) { return s.points.empty(); });
  });
  const std::string title = html_text(title_of(summary));
  const double last = steps.empty() ? 0 : static_cast<double>(steps.back().step);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>{0}</title>\n"
      "<style>body{{font:14px sans-serif;color:#333;max-width:900px;margin:2em auto}}"
      "td{{padding:1px 12px 1px 0}}td+td{{font-family:monospace}}</style>\n</head>\n<body>\n"
      "<h1>{0}</h1>\n<table>\n{1}</table>\n{2}<h2>Config</h2>\n<pre>{3}</pre>\n</body>\n</html>\n",
      title, summary_rows(summary, steps), draw(panels, "", last), html_text(config));
}

}  // namespace weft
