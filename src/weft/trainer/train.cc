#include "weft/trainer/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "weft/base/file.h"
#include "weft/http/client.h"
#include "weft/trainer/grpo.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/report.h"
#include "weft/trainer/rollout.h"
#include "weft/trainer/save.h"
#include "weft/trainer/tasks.h"
#include "weft/trainer/version_check.h"
#include "weft/transfer/delta_publisher.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// What derive_seed() keeps apart.
enum SeedUse : std::uint64_t { kWeightSeed = 1, kProblemSeed, kRolloutSeed, kHeldOutSeed };

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double ms() const { return seconds() * 1e3; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

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

// A step's rollouts, flat: answer i belongs to problem i / group_size.
struct Experience {
  std::vector<Problem> problems;
  std::vector<std::vector<std::uint32_t>> prompts;  // [answers]
  std::vector<Rollout> rollouts;                    // [answers]
  std::vector<double> rewards;                      // [answers]
};

double solved_share(std::span<const double> rewards) {
  return static_cast<double>(std::ranges::count(rewards, 1.0)) /
         static_cast<double>(rewards.size());
}

class Run {
 public:
  Run(const TrainConfig& config, const TrainEnvironment& environment)
      : config_(config), environment_(environment), out_(config.out) {}

  Result<void> blocking_run();

 private:
  Result<void> blocking_prepare();
  Result<void> blocking_connect();
  Result<void> blocking_fine_tune();
  double greedy_by_teacher() const;
  Result<void> blocking_improve();
  Result<void> blocking_step(std::uint64_t step);
  Result<void> blocking_learn(StepMetrics& metrics);
  Result<Experience> blocking_collect(std::vector<Problem> problems, std::uint64_t count,
                                      double temperature, std::uint64_t use, std::uint64_t step);
  Result<void> blocking_check_versions(const Experience& experience, std::uint64_t offset,
                                       StepMetrics& metrics);
  Result<void> update(const Experience& experience, StepMetrics& metrics);
  std::vector<float> pass(const Experience& experience, std::span<const std::size_t> which,
                          std::span<const double> advantages, StepMetrics& metrics);
  Result<void> blocking_publish(std::uint64_t version, StepMetrics& metrics);
  Result<void> blocking_push_to_all(const WeightSet& weights, const std::string& label,
                                    StepMetrics& metrics);
  Result<void> blocking_measure(std::uint64_t step, StepMetrics& metrics);
  double engine_total(std::string_view metric) const;
  Result<void> check_bounds(const StepMetrics& metrics) const;
  Result<void> blocking_record(const StepMetrics& metrics);
  Result<void> blocking_finish(std::optional<Error> failure);
  Result<std::shared_ptr<const WeightSet>> current_weights() const;
  Result<void> stop_if_asked() const;

  const TrainConfig& config_;
  const TrainEnvironment& environment_;
  fs::path out_;
  Stopwatch clock_;
  std::string model_json_;
  ModelConfig model_;
  std::shared_ptr<const WeightLayout> layout_;
  std::unique_ptr<Task> task_;
  std::optional<ProblemSource> problems_;
  std::unique_ptr<Policy> policy_;
  std::vector<std::unique_ptr<http::Client>> servers_;
  std::optional<DeltaPublisher> publisher_;
  std::optional<VersionCheck> versions_;
  std::shared_ptr<const WeightSet> published_;
  std::ofstream metrics_file_;
  std::vector<StepMetrics> steps_;
  RunSummary summary_;
};

Result<void> Run::blocking_run() {
  summary_.task = config_.task.name;
  summary_.seed = config_.seed;
  WEFT_TRY_VOID(blocking_prepare());
  WEFT_TRY_VOID(blocking_connect());
  WEFT_TRY_VOID(blocking_fine_tune());
  Result<void> improved = blocking_improve();
  // A run that failed its own checks says so in its summary; one that was cut off has none.
  if (!improved && improved.error().code() != ErrorCode::kCorrupt) return improved;
  return blocking_finish(improved ? std::nullopt : std::optional(improved.error()));
}

Result<void> Run::blocking_prepare() {
  model_json_ = model_config_json(config_.model);
  WEFT_TRY(model_, ModelConfig::parse(model_json_));
  WEFT_TRY(auto layout, WeightLayout::make(expected_tensors(model_)));
  layout_ = std::make_shared<const WeightLayout>(std::move(layout));
  WEFT_TRY(task_, make_task(config_.task.name, config_.task.digits));
  WEFT_TRY(problems_, ProblemSource::make(*task_, config_.task.held_out,
                                          derive_seed(config_.seed, kProblemSeed, 0)));
  WEFT_TRY(policy_, Policy::create(model_, derive_seed(config_.seed, kWeightSeed, 0),
                                   static_cast<unsigned>(config_.threads)));
  WEFT_TRY(published_, current_weights());
  WEFT_TRY_VOID(blocking_save_model(out_ / "start", model_json_, *published_));
  WEFT_TRY(versions_, VersionCheck::create(model_, published_));
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
  for (const std::string& text : urls) {
    WEFT_TRY(auto url, http::Url::parse(text));
    servers_.push_back(http::Client::make(std::move(url), options));
    auto health = servers_.back()->blocking_send(get_request("/health"));
    if (!health) {
      return std::move(health).error().with_context(
          fmt::format("no server at {} (`weft serve {} --deterministic` starts one)", text,
                      (out_ / "start").string()));
    }
  }
  std::vector<http::Client*> servers;
  for (const auto& server : servers_) servers.push_back(server.get());
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  publisher_.emplace(std::move(servers), config_.server.deltas ? kAll : 0);
  return {};
}

Result<void> Run::blocking_fine_tune() {
  policy_->reset_optimizer({.beta2 = 0.98});
  double greedy = greedy_by_teacher();
  for (std::uint64_t step = 1; step <= config_.sft.max_steps && greedy < config_.sft.stop_at;
       ++step) {
    WEFT_TRY_VOID(stop_if_asked());
    std::vector<TokenSequence> sequences;
    for (const Problem& problem : problems_->draw(config_.sft.batch)) {
      sequences.push_back(
          {Vocabulary::encode(problem.question), Vocabulary::encode(problem.answer)});
      sequences.back().answer.push_back(Vocabulary::kEnd);
    }
    // Cross-entropy: minus the mean log-probability of the answers' tokens.
    const std::vector<float> logprobs = policy_->forward(sequences);
    const auto count = static_cast<float>(logprobs.size());
    policy_->backward(std::vector<float>(logprobs.size(), -1.0f / count));
    const double warmup =
        static_cast<double>(step) / static_cast<double>(config_.sft.warmup_steps + 1);
    const double loss = -std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / count;
    if (!std::isfinite(policy_->step(config_.sft.learning_rate * std::min(1.0, warmup))) ||
        !std::isfinite(loss)) {
      return Error(ErrorCode::kInternal,
                   fmt::format("fine-tuning step {}: the loss or its gradient is "
                               "not finite (sft.learning_rate is {})",
                               step, config_.sft.learning_rate));
    }
    summary_.sft_steps = step;
    if (step % config_.sft.eval_every != 0) continue;
    greedy = greedy_by_teacher();
    environment_.print(
        fmt::format("fine-tuning {:>4}  loss {:.4f}  held-out greedy {:.3f}", step, loss, greedy));
  }
  return {};
}

// The share of held-out problems that greedy decoding solves: it does exactly where every token of
// the answer is the likeliest after the question and the tokens before it.
double Run::greedy_by_teacher() const {
  std::vector<TokenSequence> sequences;
  for (const Problem& problem : problems_->held_out()) {
    sequences.push_back({Vocabulary::encode(problem.question), Vocabulary::encode(problem.answer)});
    sequences.back().answer.push_back(Vocabulary::kEnd);
  }
  const std::vector<bool> greedy = policy_->score(sequences).greedy;
  std::size_t solved = 0;
  auto tok = greedy.begin();
  for (const TokenSequence& sequence : sequences) {
    const auto end = tok + static_cast<std::ptrdiff_t>(sequence.answer.size());
    solved += std::find(tok, end, false) == end ? 1 : 0;
    tok = end;
  }
  return static_cast<double>(solved) / static_cast<double>(sequences.size());
}

Result<void> Run::blocking_improve() {
  StepMetrics start;
  WEFT_TRY_VOID(blocking_publish(0, start));
  WEFT_TRY_VOID(blocking_measure(0, start));
  WEFT_TRY_VOID(check_bounds(start));
  summary_.solve_rate_start = *start.greedy_solve_rate;
  summary_.sampled_solve_rate_start = *start.sampled_solve_rate;
  environment_.print(fmt::format("after fine-tuning: held-out greedy {:.3f} sampled {:.3f}",
                                 summary_.solve_rate_start, summary_.sampled_solve_rate_start));
  policy_->reset_optimizer({.max_grad_norm = config_.grpo.max_grad_norm});
  for (std::uint64_t step = 1; step <= config_.grpo.steps; ++step) {
    WEFT_TRY_VOID(stop_if_asked());
    WEFT_TRY_VOID(blocking_step(step));
  }
  const VersionCounts& counts = summary_.versions;
  if (counts.discriminating_share() < config_.check.min_discriminating_share) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("only {:.3f} of the rescored tokens would have scored otherwise under the "
                    "version before (check.min_discriminating_share is {})",
                    counts.discriminating_share(), config_.check.min_discriminating_share));
  }
  return {};
}

Result<void> Run::blocking_step(std::uint64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  Result<void> learned = blocking_learn(metrics);
  // What made a check fail is worth a line too.
  if (!learned && learned.error().code() != ErrorCode::kCorrupt) return learned;
  WEFT_TRY_VOID(blocking_record(metrics));
  return learned;
}

// Step n samples from version n - 1, learns from that, and publishes version n.
Result<void> Run::blocking_learn(StepMetrics& metrics) {
  const std::uint64_t step = metrics.step;
  const double steps_before = engine_total("weft_engine_steps_total");
  const double seconds_before = engine_total("weft_engine_step_seconds_total");
  const Stopwatch rollout_clock;
  WEFT_TRY(const Experience experience,
           blocking_collect(problems_->draw(config_.grpo.prompts), config_.grpo.group_size,
                            config_.grpo.temperature, kRolloutSeed, step));
  metrics.rollout_ms = rollout_clock.ms();
  const double engine_steps = engine_total("weft_engine_steps_total") - steps_before;
  const double engine_seconds = engine_total("weft_engine_step_seconds_total") - seconds_before;
  metrics.decode_step_ms = engine_steps > 0 ? engine_seconds / engine_steps * 1e3 : 0;
  for (const Rollout& rollout : experience.rollouts) metrics.tokens += rollout.tokens.size();
  metrics.tokens_per_s = static_cast<double>(metrics.tokens) / (metrics.rollout_ms / 1e3);
  metrics.reward = std::accumulate(experience.rewards.begin(), experience.rewards.end(), 0.0) /
                   static_cast<double>(experience.rewards.size());
  metrics.solve_rate = solved_share(experience.rewards);

  WEFT_TRY_VOID(blocking_check_versions(experience, step, metrics));
  WEFT_TRY_VOID(check_bounds(metrics));
  const Stopwatch update_clock;
  WEFT_TRY_VOID(update(experience, metrics));
  metrics.update_ms = update_clock.ms();
  WEFT_TRY_VOID(check_bounds(metrics));
  WEFT_TRY_VOID(blocking_publish(step, metrics));
  if (step % config_.grpo.eval_every == 0 || step == config_.grpo.steps) {
    WEFT_TRY_VOID(blocking_measure(step, metrics));
    summary_.solve_rate_end = *metrics.greedy_solve_rate;
    summary_.sampled_solve_rate_end = *metrics.sampled_solve_rate;
  }
  return check_bounds(metrics);
}

Result<Experience> Run::blocking_collect(std::vector<Problem> problems, std::uint64_t count,
                                         double temperature, std::uint64_t use,
                                         std::uint64_t step) {
  std::vector<RolloutRequest> requests;
  for (const Problem& problem : problems) {
    const std::uint64_t seed =
        derive_seed(derive_seed(config_.seed, use, step), requests.size(), 0);
    requests.push_back({.prompt = Vocabulary::encode(problem.question),
                        .count = count,
                        .temperature = temperature,
                        .max_tokens = task_->max_answer_tokens(),
                        .seed = seed});
  }
  WEFT_TRY(auto groups, blocking_roll_out(servers_, requests, model_.vocab_size));
  Experience experience;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (Rollout& rollout : groups[i]) {
      const std::size_t length = rollout.tokens.size() - (rollout.ended ? 1 : 0);
      const std::string answer = Vocabulary::decode(std::span(rollout.tokens).first(length));
      experience.rewards.push_back(task_->reward(problems[i], answer, rollout.ended));
      experience.prompts.push_back(requests[i].prompt);
      experience.rollouts.push_back(std::move(rollout));
    }
  }
  experience.problems = std::move(problems);
  return experience;
}

// Checks evenly spaced rollouts, others at each `offset`.
Result<void> Run::blocking_check_versions(const Experience& experience, std::uint64_t offset,
                                          StepMetrics& metrics) {
  const Stopwatch clock;
  const std::size_t all = experience.rollouts.size();
  const std::size_t count = std::min<std::size_t>(all, config_.check.rescored_sequences);
  std::vector<std::vector<std::uint32_t>> prompts;
  std::vector<Rollout> rollouts;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = (i * all / count + offset) % all;
    prompts.push_back(experience.prompts[place]);
    rollouts.push_back(experience.rollouts[place]);
  }
  WEFT_TRY(const VersionCounts counts, versions_->blocking_check(prompts, rollouts));
  metrics.versions += counts;
  summary_.versions += counts;
  metrics.check_ms += clock.ms();
  return {};
}

Result<void> Run::update(const Experience& experience, StepMetrics& metrics) {
  const std::vector<double> advantages =
      group_advantages(experience.rewards, config_.grpo.group_size);
  // Groups that are all right or all wrong have no gradient; they are scored for the check alone.
  std::vector<std::size_t> learned, scored;
  for (std::size_t i = 0; i < advantages.size(); ++i) {
    (std::abs(advantages[i]) > 1e-6 ? learned : scored).push_back(i);
  }
  for (const bool is_learned : {true, false}) {
    std::span<const std::size_t> left = is_learned ? learned : scored;
    while (!left.empty()) {
      const auto part = left.first(std::min<std::size_t>(left.size(), config_.grpo.micro_batch));
      left = left.subspan(part.size());
      const std::vector<float> logprobs =
          pass(experience, part, is_learned ? advantages : std::span<const double>(), metrics);
      std::size_t tok = 0;
      for (const std::size_t i : part) {
        for (const float sampled : experience.rollouts[i].logprobs) {
          const double difference = std::abs(static_cast<double>(logprobs[tok++]) - sampled);
          // A comparison that NaN fails would hide it.
          if (!(difference <= metrics.logprob_max_abs_diff))
            metrics.logprob_max_abs_diff = difference;
        }
      }
    }
  }
  const auto step = static_cast<double>(metrics.step),
             steps = static_cast<double>(config_.grpo.steps);
  const double warmup = step / static_cast<double>(config_.grpo.warmup_steps + 1);
  metrics.clipped_share /= static_cast<double>(metrics.tokens);
  metrics.learning_rate =
      config_.grpo.learning_rate * std::min(1.0, warmup) * (1 - (step - 1) / steps);
  metrics.grad_norm = learned.empty() ? 0 : policy_->step(metrics.learning_rate);
  if (!std::isfinite(metrics.grad_norm) || !std::isfinite(metrics.loss)) {
    return Error(ErrorCode::kInternal,
                 fmt::format("step {}: the loss or its gradient is not finite", metrics.step));
  }
  return {};
}

// The trainer's log-probabilities of the rollouts `which`; with `advantages` also the loss and its
// gradient.
std::vector<float> Run::pass(const Experience& experience, std::span<const std::size_t> which,
                             std::span<const double> advantages, StepMetrics& metrics) {
  std::vector<TokenSequence> sequences;
  std::vector<float> sampled;
  std::vector<double> token_advantages;
  for (const std::size_t i : which) {
    const Rollout& rollout = experience.rollouts[i];
    sequences.push_back({experience.prompts[i], rollout.tokens});
    sampled.insert(sampled.end(), rollout.logprobs.begin(), rollout.logprobs.end());
    if (!advantages.empty()) {
      token_advantages.insert(token_advantages.end(), rollout.tokens.size(), advantages[i]);
    }
  }
  if (advantages.empty()) return policy_->score(sequences).logprobs;
  const std::vector<float> logprobs = policy_->forward(sequences);
  const PolicyLoss loss =
      clipped_policy_loss(logprobs, sampled, token_advantages, config_.grpo.clip_low,
                          config_.grpo.clip_high, metrics.tokens);
  policy_->backward(loss.gradient);
  metrics.loss += loss.loss;
  metrics.clipped_share += static_cast<double>(loss.clipped);
  return logprobs;
}

Result<void> Run::blocking_publish(std::uint64_t version, StepMetrics& metrics) {
  const Stopwatch clock;
  const auto older = published_;
  WEFT_TRY(published_, current_weights());
  metrics.version = fmt::format("step-{}", version);
  versions_->remember(metrics.version, published_);
  if (config_.fault.swap_labels && version == 1) {
    WEFT_TRY_VOID(blocking_push_to_all(*published_, "step-0", metrics));
    WEFT_TRY_VOID(blocking_push_to_all(*older, "step-1", metrics));
  } else {
    WEFT_TRY_VOID(blocking_push_to_all(*published_, metrics.version, metrics));
  }
  metrics.sync_ms = clock.ms();
  return {};
}

Result<void> Run::blocking_push_to_all(const WeightSet& weights, const std::string& label,
                                       StepMetrics& metrics) {
  PushOptions options;
  options.label = label;
  auto results = publisher_->blocking_publish(tensor_views(weights), options);
  for (std::size_t i = 0; i < results.size(); ++i) {
    Result<PushReport>& pushed = results[i];
    if (!pushed) {
      return std::move(pushed).error().with_context(
          fmt::format("publishing {} to {}", label, servers_[i]->server().text()));
    }
    metrics.sync_bytes += pushed->sent_bytes;
    metrics.sync_full_bytes += pushed->total_bytes;
    metrics.sync_delta_bytes +=
        pushed->payload_bytes.at(static_cast<std::size_t>(Encoding::kDelta));
    metrics.sync_fell_back += pushed->fell_back;
    metrics.pause_us = std::max(metrics.pause_us, pushed->stall_us);
  }
  return {};
}

// The held-out solve rates, through the servers.
Result<void> Run::blocking_measure(std::uint64_t step, StepMetrics& metrics) {
  WEFT_TRY(const Experience greedy,
           blocking_collect(problems_->held_out(), 1, 0.0, kHeldOutSeed, step));
  WEFT_TRY(const Experience sampled,
           blocking_collect(problems_->held_out(), 1, 1.0, kHeldOutSeed, step));
  metrics.greedy_solve_rate = solved_share(greedy.rewards);
  metrics.sampled_solve_rate = solved_share(sampled.rewards);
  return blocking_check_versions(sampled, step, metrics);
}

double Run::engine_total(std::string_view metric) const {
  double total = 0;
  for (const auto& server : servers_) {
    const auto page = server->blocking_send(get_request("/metrics"));
    if (page && page->status == 200) total += metric_value(page->body, metric);
  }
  return total;
}

// Learning from tokens that are not what they seem is worse than stopping.
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

Result<void> Run::blocking_record(const StepMetrics& metrics) {
  steps_.push_back(metrics);
  environment_.print(step_line(metrics, config_.grpo.steps));
  metrics_file_ << step_json(metrics) << std::endl;
  if (!metrics_file_) {
    return Error(ErrorCode::kNoSpace, (out_ / "metrics.jsonl").string() + ": cannot write");
  }
  return {};
}

Result<void> Run::blocking_finish(std::optional<Error> failure) {
  WEFT_TRY_VOID(blocking_save_model(out_ / "checkpoint", model_json_, *published_));
  summary_.seconds = clock_.seconds();
  if (failure) summary_.failure = failure->message();
  WEFT_TRY_VOID(blocking_write_file(out_ / "summary.json", summary_json(summary_, steps_)));
  WEFT_TRY_VOID(blocking_write_file(out_ / "plot.svg", plot_svg(summary_, steps_)));
  if (failure) return std::move(*failure);
  return {};
}

Result<std::shared_ptr<const WeightSet>> Run::current_weights() const {
  WEFT_TRY(std::shared_ptr<WeightSet> weights, WeightSet::blocking_allocate(layout_));
  policy_->write_weights(*weights);
  return std::shared_ptr<const WeightSet>(std::move(weights));
}

Result<void> Run::stop_if_asked() const {
  if (environment_.stop->load()) return Error(ErrorCode::kCancelled, "interrupted");
  return {};
}

}  // namespace

Result<void> blocking_train(const TrainConfig& config, const TrainEnvironment& environment) {
  return Run(config, environment).blocking_run();
}

}  // namespace weft
