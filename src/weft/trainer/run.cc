#include "weft/trainer/run.h"

#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "weft/base/file.h"
#include "weft/trainer/save.h"

namespace weft {
namespace {

http::Request get_request(std::string target) {
  http::Request request;
  request.method = "GET";
  request.target = std::move(target);
  return request;
}

// The value of a metric in Prometheus' text format; 0 if the server does not have it.
double metric_value(std::string_view page, std::string_view name) {
  const std::size_t at = page.find(fmt::format("\n{}{{", name));
  const std::size_t value = at == std::string_view::npos ? at : page.find("} ", at);
  return value == std::string_view::npos ? 0 : std::strtod(page.data() + value + 2, nullptr);
}

}  // namespace

Result<std::unique_ptr<Run>> Run::blocking_start(const TrainConfig& config,
                                                 const TrainEnvironment& environment) {
  std::unique_ptr<Run> run(new Run(config, environment));
  run->summary_.task = config.task.name;
  run->summary_.seed = config.seed;
  WEFT_TRY_VOID(run->blocking_prepare());
  WEFT_TRY_VOID(run->blocking_connect());
  return run;
}

Result<void> Run::blocking_prepare() {
  model_json_ = model_config_json(config_.model);
  WEFT_TRY(model_, ModelConfig::parse(model_json_));
  WEFT_TRY(task_, make_task(config_.task.name, config_.task.digits));
  WEFT_TRY(problems_, ProblemSource::make(*task_, config_.task.held_out,
                                          derive_seed(config_.seed, kProblemSeed, 0)));
  WEFT_TRY(policy_, Policy::create(model_, derive_seed(config_.seed, kWeightSeed, 0),
                                   static_cast<unsigned>(config_.threads)));
  WEFT_TRY(sync_, WeightSync::create(config_, model_, *policy_));
  WEFT_TRY_VOID(blocking_save_model(out_ / "start", model_json_, *sync_->published()));
  metrics_file_.open(out_ / "metrics.jsonl", std::ios::trunc);
  if (!metrics_file_) {
    return Error(ErrorCode::kForbidden, (out_ / "metrics.jsonl").string() + ": cannot write");
  }
  return {};
}

Result<void> Run::blocking_connect() {
  WEFT_TRY(const auto urls, environment_.blocking_servers(out_ / "start"));
  http::ClientOptions options;
  options.request_timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(config_.server.request_timeout_s * 1e3));
  options.idle_timeout = options.request_timeout;  // a generation answers when it is done
  std::vector<http::Client*> servers;
  for (const std::string& text : urls) {
    WEFT_TRY(auto url, http::Url::parse(text));
    servers_.push_back(http::Client::make(std::move(url), options));
    servers.push_back(servers_.back().get());
    auto health = servers_.back()->blocking_send(get_request("/health"));
    if (!health) {
      return std::move(health).error().with_context(
          fmt::format("no server at {} (`weft serve {} --deterministic` starts one)", text,
                      (out_ / "start").string()));
    }
  }
  sync_->connect(std::move(servers));
  return {};
}

Result<void> Run::stop_if_asked() const {
  if (environment_.stop->load()) return Error(ErrorCode::kCancelled, "interrupted");
  return {};
}

Result<void> Run::blocking_publish(std::uint64_t version, StepMetrics& metrics) {
  return sync_->blocking_publish(*policy_, version, metrics);
}

Result<void> Run::blocking_check_versions(const Experience& experience, std::uint64_t offset,
                                          StepMetrics& metrics) {
  const Stopwatch clock;
  WEFT_TRY(const VersionCounts counts, sync_->blocking_check(experience, offset));
  metrics.versions += counts;
  metrics.check_ms += clock.ms();
  summary_.versions += counts;
  return {};
}

Result<void> Run::check_bounds(const StepMetrics& metrics) const {
  if (metrics.versions.wrong > 0) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("step {}: {} of {} rescored tokens do not come from the version that they "
                    "name",
                    metrics.step, metrics.versions.wrong, metrics.versions.checked));
  }
  if (!(metrics.logprob_max_abs_diff <= config_.check.max_logprob_diff)) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("step {}: trainer and server differ by {} on the log-probability of a "
                    "token (check.max_logprob_diff is {})",
                    metrics.step, metrics.logprob_max_abs_diff, config_.check.max_logprob_diff));
  }
  return {};
}

Result<void> Run::check_discriminating_share() const {
  const double share = summary_.versions.discriminating_share();
  if (share >= config_.check.min_discriminating_share) return {};
  return Error(
      ErrorCode::kCorrupt,
      fmt::format("only {:.3f} of the rescored tokens would have scored otherwise under the "
                  "version before (check.min_discriminating_share is {})",
                  share, config_.check.min_discriminating_share));
}

double Run::blocking_engine_total(std::string_view metric) const {
  double total = 0;
  for (const auto& server : servers_) {
    const auto page = server->blocking_send(get_request("/metrics"));
    if (page && page->status == 200) total += metric_value(page->body, metric);
  }
  return total;
}

Result<void> Run::blocking_record(const StepMetrics& metrics, std::uint64_t steps) {
  steps_.push_back(metrics);
  print(step_line(metrics, steps));
  metrics_file_ << step_json(metrics) << std::endl;
  if (!metrics_file_) {
    return Error(ErrorCode::kNoSpace, (out_ / "metrics.jsonl").string() + ": cannot write");
  }
  return {};
}

Result<void> Run::blocking_finish(std::optional<Error> failure) {
  WEFT_TRY_VOID(blocking_save_model(out_ / "checkpoint", model_json_, *sync_->published()));
  summary_.seconds = clock_.seconds();
  if (failure) summary_.failure = failure->message();
  WEFT_TRY_VOID(blocking_write_file(out_ / "summary.json", summary_json(summary_, steps_)));
  WEFT_TRY_VOID(blocking_write_file(out_ / "plot.svg", plot_svg(summary_, steps_)));
  if (failure) return std::move(*failure);
  return {};
}

}  // namespace weft
