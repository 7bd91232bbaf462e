#include "weft/trainer/report.h"

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/format/json.h"

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

// Puts one field of a JSON object into a metric.
class FieldReader {
 public:
  explicit FieldReader(const boost::json::object& object) : object_(object) {}

  void operator()(std::string_view name, auto& field) {
    const boost::json::value* const value = object_.if_contains(name);
    if ((value == nullptr || !read(*value, field)) && !error_) {
      error_ = Error(ErrorCode::kCorrupt, fmt::format("a step's {} is missing or wrong", name));
    }
  }
  void operator()(std::string_view name, std::optional<double>& field) {
    if (object_.contains(name)) (*this)(name, field.emplace());
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  static bool read(const boost::json::value& value, std::string& field) {
    if (value.is_string()) field = value.get_string();
    return value.is_string();
  }
  template <typename T>
  static bool read(const boost::json::value& value, T& field) {
    boost::system::error_code error;
    field = value.to_number<T>(error);
    return !error;
  }

  const boost::json::object& object_;
  std::optional<Error> error_;
};

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
      m.sync_ms, m.pause_us, static_cast<double>(m.sync_bytes) / 1e6, m.version, m.logprobs.most);
  if (m.greedy_solve_rate) {
    line += fmt::format("  | held-out greedy {:.3f} sampled {:.3f}", *m.greedy_solve_rate,
                        m.sampled_solve_rate.value_or(0));
  }
  return line;
}

std::string step_json(const StepMetrics& metrics) {
  JsonObject out(", ");
  visit_metrics(metrics, [&](std::string_view name, const auto& field) { out.add(name, field); });
  return "{" + out.fields() + "}";
}

Result<StepMetrics> parse_step_json(std::string_view json) {
  WEFT_TRY(const boost::json::value root, parse_json(json));
  if (!root.is_object()) return Error(ErrorCode::kCorrupt, "a step must be a JSON object");
  StepMetrics metrics;
  FieldReader reader(root.get_object());
  visit_metrics(metrics, reader);
  if (reader.error()) return *reader.error();
  return metrics;
}

std::string summary_json(const RunSummary& summary, std::span<const StepMetrics> steps) {
  const VersionCounts& versions = summary.versions;
  double diff = 0;
  std::uint64_t bytes = 0, full_bytes = 0, tokens = 0;
  for (const StepMetrics& step : steps) {
    diff = std::max(diff, step.logprobs.most);
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
  out.add("win_rate", summary.win_rate);
  out.add("pair_accuracy", summary.pair_accuracy);
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

}  // namespace weft
