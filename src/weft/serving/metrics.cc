#include "weft/serving/metrics.h"

#include <string_view>

#include <fmt/core.h>

namespace weft {
namespace {

// A label's value. Source: Prometheus' exposition format.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out;
}

class Page {
 public:
  explicit Page(std::string_view model_name)
      : labels_(fmt::format("engine=\"0\",model_name=\"{}\"", escaped(model_name))) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  void sample(std::string_view name, auto value, std::string_view more = "") {
    text_ += fmt::format("{}{{{}{}}} {}\n", name, labels_, more, value);
  }
  void gauge(std::string_view name, std::string_view help, auto value) {
    head(name, "gauge", help);
    sample(name, value);
  }
  void counter(std::string_view name, std::string_view help, auto value) {
    head(name, "counter", help);
    sample(name, value);
  }
  std::string take() && { return std::move(text_); }

 private:
  std::string labels_;
  std::string text_;
};

}  // namespace

std::string render_metrics(const ServedModel& model, const EngineStats& stats,
                           const VersionName& version, bool paused) {
  Page page(model.name);
  page.gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.running);
  page.gauge("vllm:num_requests_waiting", "Sequences waiting to run.", stats.waiting);
  page.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.",
             stats.kv_cache_usage);
  page.counter("vllm:num_preemptions_total", "Preemptions.", stats.preemptions);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens computed.", stats.prompt_tokens);
  page.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  page.head("vllm:request_success_total", "counter", "Sequences that ended, by reason.");
  const auto ended = [&](std::string_view reason, std::uint64_t count) {
    page.sample("vllm:request_success_total", count,
                fmt::format(",finished_reason=\"{}\"", reason));
  };
  ended("stop", stats.finished_stop);
  ended("length", stats.finished_length);
  ended("abort", stats.finished_abort);
  ended("error", stats.finished_error);
  page.counter("weft:engine_steps_total", "Steps of the engine.", stats.steps);
  page.counter("weft:engine_step_seconds_total", "Time in steps.", stats.step_seconds);
  page.gauge("weft:engine_paused", "1 while paused.", paused ? 1 : 0);
  page.head("weft:weight_version_info", "gauge", "The version that is served.");
  page.sample("weft:weight_version_info", 1,
              fmt::format(",id=\"{}\",label=\"{}\"", escaped(version.id), escaped(version.label)));
  return std::move(page).take();
}

}  // namespace weft
