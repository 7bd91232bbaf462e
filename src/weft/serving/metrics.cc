#include "weft/serving/metrics.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

std::string label(std::string_view name, std::string_view value) {
  return fmt::format(",{}=\"{}\"", name, escaped(value));
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

void add_engine(Page& page, const EngineStats& stats, bool paused) {
  page.gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.running);
  page.gauge("vllm:num_requests_waiting", "Sequences waiting to run.", stats.waiting);
  page.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.",
             stats.kv_cache_usage);
  page.counter("vllm:num_preemptions_total", "Preemptions.", stats.preemptions);
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.",
               stats.prefix_cache_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               stats.prefix_cache_hits);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of sequences that began.",
               stats.prompt_tokens);
  page.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  constexpr std::string_view kEnded = "vllm:request_success_total";
  page.head(kEnded, "counter", "Sequences that ended, by reason.");
  page.sample(kEnded, stats.finished_stop, label("finished_reason", "stop"));
  page.sample(kEnded, stats.finished_length, label("finished_reason", "length"));
  page.sample(kEnded, stats.finished_abort, label("finished_reason", "abort"));
  page.sample(kEnded, stats.finished_error, label("finished_reason", "error"));
  page.counter("weft_engine_steps_total", "Steps of the engine.", stats.steps);
  page.counter("weft_engine_step_seconds_total", "Time in steps.", stats.step_seconds);
  page.gauge("weft_engine_paused", "1 while paused.", paused ? 1 : 0);
}

void add_version(Page& page, const VersionName& version, const EngineStats& stats) {
  const std::string serving = label("id", version.id) + label("label", version.label);
  page.head("weft_weight_version_info", "gauge", "The version that is served.");
  page.sample("weft_weight_version_info", 1,
              serving + label("converted", version.converted ? "true" : "false"));
  constexpr std::string_view kSequences = "weft_sequences";
  page.head(kSequences, "gauge", "Sequences that run, by the version that they run on.");
  page.sample(kSequences, stats.running - std::min(stats.running, stats.on_retired), serving);
  if (stats.retired) {
    page.sample(kSequences, stats.on_retired,
                label("id", stats.retired->id) + label("label", stats.retired->label));
  }
}

void add_updates(Page& page, const ReceiverMetrics& updates) {
  constexpr std::string_view kUpdates = "weft_weight_updates_total";
  page.head(kUpdates, "counter", "Updates, by how they ended.");
  page.sample(kUpdates, updates.committed, label("result", "committed"));
  page.sample(kUpdates, updates.failed, label("result", "failed"));
  page.sample(kUpdates, updates.rolled_back, label("result", "rolled_back"));
  page.head("weft_weight_update_seconds", "summary", "Time of updates, by stage.");
  for (std::size_t stage = 0; stage < updates.stages.size(); ++stage) {
    const std::string name = label("stage", kUpdateStageNames.at(stage));
    page.sample("weft_weight_update_seconds_sum", updates.stages.at(stage).seconds, name);
    page.sample("weft_weight_update_seconds_count", updates.stages.at(stage).count, name);
  }
  page.head("weft_weight_bytes_total", "counter", "Bytes of weights that came, by encoding.");
  for (const auto& [encoding, bytes] : updates.bytes) {
    page.sample("weft_weight_bytes_total", bytes, label("encoding", encoding));
  }
  page.head("weft_weight_refusals_total", "counter", "Calls for weights refused, by reason.");
  for (const auto& [reason, count] : updates.refusals) {
    page.sample("weft_weight_refusals_total", count, label("reason", reason));
  }
}

}  // namespace

std::string render_metrics(const Metrics& metrics) {
  Page page(metrics.model_name);
  add_engine(page, metrics.engine, metrics.paused);
  add_version(page, metrics.version, metrics.engine);
  add_updates(page, metrics.server.updates);
  if (metrics.server.version_lag) {
    page.gauge("weft_weight_version_lag",
               "1 while the followed head names another version than is served.",
               *metrics.server.version_lag);
    constexpr std::string_view kPulls = "weft_weight_pulls_total";
    page.head(kPulls, "counter", "Versions of the followed head, by the way they came.");
    for (const auto& [way, count] : metrics.server.pulls) {
      page.sample(kPulls, count, label("way", way));
    }
  }
  page.gauge("weft_http_connections", "Open connections.", metrics.server.connections);
  return std::move(page).take();
}

}  // namespace weft
