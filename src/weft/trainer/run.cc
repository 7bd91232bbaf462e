#include "weft/trainer/run.h"

#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "weft/base/file.h"
#include "weft/trainer/live_view.h"
#include "weft/trainer/plot.h"
#include "weft/trainer/save.h"

namespace weft {

Result<std::unique_ptr<Run>> Run::blocking_start(const TrainConfig& config,
                                                 const TrainEnvironment& environment) {
  std::unique_ptr<Run> run(new Run(config, environment));
  run->summary_.task = config.task.name;
  run->summary_.seed = config.seed;
  WEFT_TRY_VOID(run->blocking_prepare());
  if (uses_section(config, "server")) WEFT_TRY_VOID(run->blocking_connect());
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
  return blocking_open_books();
}

Result<void> Run::blocking_connect() {
  WEFT_TRY(const TrainServers found, environment_.blocking_servers(out_ / "start"));
  WEFT_TRY(auto layout, WeightLayout::make(expected_tensors(model_)));
  ServerPoolOptions options;
  options.request_timeout = milliseconds(config_.server.request_timeout_s);
  // Nobody starts a spawned server again.
  options.patience = milliseconds(config_.server.spawn ? 0 : config_.server.patience_s);
  const ServerSection& server = config_.server;
  options.deltas = server.deltas == "on" || (server.deltas == "auto" && !server.spawn);
  options.key = found.key;
  options.ca_file = environment_.ca_file;
  options.print = [this](std::string_view line) { print(line); };
  options.stop = environment_.stop;
  auto servers = ServerPool::blocking_connect(
      found.urls, std::make_shared<const WeightLayout>(std::move(layout)), std::move(options));
  if (!servers && servers.error().code() == ErrorCode::kUnauthenticated) return servers.error();
  if (!servers) {
    return Error(servers.error().code(),
                 fmt::format("{} (`weft serve {} --deterministic` starts one that will do)",
                             servers.error().message(), (out_ / "start").string()));
  }
  servers_ = std::move(*servers);
  sync_->connect(*servers_);
  return {};
}

Result<void> Run::stop_if_asked() const {
  if (environment_.stop->load()) return Error(ErrorCode::kCancelled, "interrupted");
  return {};
}

Result<void> Run::blocking_publish(std::uint64_t version, StepMetrics& metrics) {
  return sync_->blocking_publish(*policy_, version, metrics);
}

Result<void> Run::blocking_publish_again(std::uint64_t version) {
  StepMetrics unrecorded;
  return sync_->blocking_publish(*policy_, version, unrecorded);
}

Result<void> Run::blocking_check_versions(const Experience& experience, std::uint64_t offset,
                                          StepMetrics& metrics) {
  const Stopwatch clock;
  WEFT_TRY(const VersionCounts counts, sync_->blocking_check(experience, offset, metrics.logprobs));
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
  if (metrics.lag_max > 0 && !config_.flow.asynchronous && !config_.fault.no_sync) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("step {}: tokens come from up to {} versions before the newest one",
                             metrics.step, metrics.lag_max));
  }
  if (!(metrics.logprobs.most <= config_.check.max_logprob_diff)) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("step {}: trainer and server differ by {} on the log-probability of a "
                             "token (check.max_logprob_diff is {})",
                             metrics.step, metrics.logprobs.most, config_.check.max_logprob_diff));
  }
  return {};
}

std::string Run::kept() const {
  if (!std::filesystem::exists(out_ / "state.safetensors")) return "nothing was saved yet";
  return fmt::format("{0}/checkpoint and {0}/state.safetensors are as they were saved last",
                     out_.string());
}

Result<void> Run::check_finite(std::string_view where, const Policy& policy, double loss,
                               double gradient_norm, double learning_rate) const {
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) return {};
  const std::string& what = policy.non_finite();
  return Error(ErrorCode::kInternal,
               fmt::format("{}: {} is not finite (the learning rate is {:g}); {}", where,
                           what.empty() ? "the loss" : what, learning_rate, kept()));
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

Result<void> Run::blocking_record(StepMetrics metrics, std::uint64_t steps) {
  const PoolCounts counts = servers_->counts();
  metrics.servers_lost = counts.lost - recorded_.lost;
  metrics.servers_back = counts.taken_back - recorded_.taken_back;
  metrics.requests_redealt = counts.redealt - recorded_.redealt;
  recorded_ = counts;
  steps_.push_back(metrics);
  if (environment_.show) {
    environment_.show(live_view(summary_, steps_, steps, clock_.seconds()));
  } else {
    print(step_line(metrics, steps));
  }
  return metrics_file_->blocking_append(step_json(metrics));
}

Result<void> Run::blocking_save_checkpoint() const {
  return blocking_save_model(out_ / "checkpoint", model_json_, *sync_->published());
}

Result<void> Run::blocking_finish(std::optional<Error> failure) {
  summary_.seconds = seconds_before_ + clock_.seconds();
  if (failure) summary_.failure = failure->message();
  WEFT_TRY_VOID(blocking_write_file(out_ / "summary.json", summary_json(summary_, steps_)));
  if (!steps_.empty()) {
    WEFT_TRY_VOID(blocking_write_file(out_ / "plot.svg", plot_svg(summary_, steps_)));
  }
  WEFT_TRY_VOID(blocking_write_file(out_ / "report.html",
                                    report_html(summary_, steps_, train_config_toml(config_))));
  if (failure) return std::move(*failure);
  return {};
}

}  // namespace weft
