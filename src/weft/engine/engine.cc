#include "weft/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include "weft/base/check.h"
#include "weft/base/guarded.h"
#include "weft/base/log.h"
#include "weft/engine/forward.h"
#include "weft/engine/sampler.h"
#include "weft/engine/scheduler.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t pages_of(std::uint64_t tokens, std::uint64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

// ---- What create() decides ----

struct CacheSize {
  kernels::KvLayout layout;
  std::uint64_t pages = 0;
};

// Replaces zeros in `options` and says how large the cache is.
Result<CacheSize> choose_sizes(const ModelConfig& config, EngineOptions& options) {
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  constexpr std::uint64_t kMost = 1'000'000;
  if (options.max_num_seqs - 1 >= kMost || options.max_num_batched_tokens - 1 >= kMost) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("max_num_seqs and max_num_batched_tokens must be 1 to {}", kMost));
  }
  if (options.page_tokens == 0 || options.page_tokens % 16 != 0) {
    return Error(ErrorCode::kInvalidArgument, "page_tokens must be a multiple of 16");
  }
  CacheSize size;
  size.layout = {config.num_kv_heads, config.head_dim, options.page_tokens};
  const std::uint64_t page_bytes = config.num_layers * size.layout.page_floats() * sizeof(float);
  const bool length_given = options.max_model_len != 0;
  if (!length_given) options.max_model_len = config.max_position_embeddings;
  const std::uint64_t wanted =
      options.max_num_seqs * pages_of(options.max_model_len, options.page_tokens);
  if (options.kv_cache_bytes == 0) {
    // A quarter of the machine: two weight sets and a trainer want the rest. Only pages in use are
    // touched.
    const auto physical_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    options.kv_cache_bytes = std::min(wanted * page_bytes, physical_bytes / 4);
  }
  constexpr std::uint64_t kMaxPages = UINT32_MAX;
  size.pages = std::min({wanted, options.kv_cache_bytes / page_bytes, kMaxPages});
  const std::uint64_t fitting = size.pages * options.page_tokens;
  if (fitting == 0 || (length_given && fitting < options.max_model_len)) {
    return Error(
        ErrorCode::kOverloaded,
        fmt::format("a KV cache of {} bytes holds {} tokens, but max_model_len is {}, which "
                    "needs {} bytes",
                    options.kv_cache_bytes, fitting, options.max_model_len,
                    pages_of(options.max_model_len, options.page_tokens) * page_bytes));
  }
  if (fitting < options.max_model_len) {
    log_info("max_model_len is {} and not {}: no more fits into a KV cache of {} bytes", fitting,
             options.max_model_len, options.kv_cache_bytes);
    options.max_model_len = fitting;
  }
  options.max_num_batched_tokens =
      std::min(options.max_num_batched_tokens, options.max_num_seqs * options.max_model_len);
  return size;
}

// ---- One sequence ----

// A request and how far it has come. The base is the scheduler's.
struct Generation : Sequence {
  SequenceId id = 0;
  SamplingParams sampling;
  std::shared_ptr<SequenceSink> sink;
  std::uint64_t seed = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_total_tokens = 0;      // prompt and output
  std::vector<ScoredToken> prompt_scores;  // [prompt_tokens], when they were asked for
  std::uint64_t prompt_rows_scored = 0;    // rows before it are done, whatever was preempted since
  bool prompt_reported = false;
  bool left_queue = false;  // was started, or ended

  // Has all the tokens it may have.
  bool is_full() const { return tokens.size() >= max_total_tokens; }
  bool wants_prompt_scores() const { return sampling.prompt_logprobs && !prompt_reported; }
};

// Seeds that no other process has, each other than the last: uniform_of() makes unrelated numbers
// of neighbours.
std::uint64_t draw_seed() {
  static std::atomic<std::uint64_t> next = [] {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }();
  return next.fetch_add(1, std::memory_order_relaxed);
}

// One row of logits and what it is for.
struct LogitsUse {
  Generation* generation = nullptr;
  std::uint64_t position = 0;  // of the token after which the logits come
  bool samples = false;        // the next token; else the prompt's next token is scored
  // Written by a worker:
  ScoredToken scored;
  std::optional<Error> error;
};

class EngineImpl final : public Engine, private LogitsConsumer {
 public:
  EngineImpl(const ModelConfig& config, const EngineOptions& options, const CacheSize& size,
             KvCache cache, ModelWeights weights, VersionName version)
      : config_(config),
        options_(options),
        pages_(static_cast<std::uint32_t>(size.pages)),
        cache_(std::move(cache)),
        scheduler_({options.max_num_seqs, options.max_num_batched_tokens, options.page_tokens},
                   pages_),
        pool_(options.threads),
        forward_(config_,
                 options.deterministic ? kernels::Summation::kExact : kernels::Summation::kFast,
                 options.max_num_batched_tokens, cache_, pool_),
        samplers_(options.threads, Sampler(config.vocab_size)),
        weights_(std::move(weights)),
        version_(std::make_shared<const VersionName>(std::move(version))),
        thread_([this] { run(); }) {}

  ~EngineImpl() override {
    post([this] { stopping_ = true; });
    thread_.join();
  }

  const ModelConfig& config() const override { return config_; }
  const EngineOptions& options() const override { return options_; }

  Result<SequenceId> submit(SequenceRequest request) override;
  void cancel(SequenceId id) override {
    post([this, id] {
      const auto at = generations_.find(id);
      if (at != generations_.end()) finish(*at->second, {.reason = FinishReason::kAbort});
    });
  }

  void pause(PauseMode mode, bool clear_cache, std::function<void()> done) override {
    post(
        [this, mode, clear_cache, done = std::move(done)] {
          pause_mode_ = mode;
          if (mode == PauseMode::kAbort) abort_all();
          if (clear_cache && mode == PauseMode::kKeep) scheduler_.drop_computed();
          if (done) pauses_.push_back(done);
        },
        true);
  }
  void resume() override {
    post(
        [this] {
          pause_mode_.reset();
          complete_pauses();
        },
        false);
  }
  bool is_paused() const override { return paused_.load(std::memory_order_relaxed); }

  void swap_weights(std::shared_ptr<const WeightSet> weights, VersionName version,
                    std::function<void(SwapReport)> done) override;
  void rename_version(VersionName version) override {
    post([this, name = std::make_shared<const VersionName>(std::move(version))] {
      version_.with([&](auto& current) { current = name; });
    });
  }
  std::shared_ptr<const VersionName> version() const override {
    return version_.with([](const auto& current) { return current; });
  }
  EngineStats stats() const override {
    return stats_.with([](const EngineStats& current) { return current; });
  }

 private:
  using Command = std::function<void()>;

  // Runs `command` on the engine's thread, between two steps, in the order of the calls. `paused`
  // is what is_paused() says from now on.
  void post(Command command, std::optional<bool> paused = std::nullopt) {
    {
      const std::lock_guard lock(inbox_mutex_);
      inbox_.push_back(std::move(command));
      if (paused) paused_.store(*paused, std::memory_order_relaxed);
    }
    inbox_filled_.notify_one();
  }

  // Everything below runs on the engine's thread, but for on_logits.
  void run();
  void run_commands(bool wait);
  void step(std::span<const Slice> slices);
  void make_batch(std::span<const Slice> slices);
  void on_logits(unsigned worker, std::size_t row, std::span<const float> logits) override;
  void hand_out(const Slice& slice, std::span<LogitsUse> uses,
                const std::shared_ptr<const VersionName>& version);
  // The end tokens that count for it.
  std::span<const std::uint32_t> end_ids(const Generation& generation) const;
  std::optional<FinishEvent> try_end(const Generation& generation, std::uint32_t token) const;
  void finish(Generation& generation, FinishEvent event);
  std::uint64_t& finished_counter(FinishReason reason);
  // Whether it was in the queue of those never started until now.
  bool leave_queue(Generation& generation);
  void abort_all();
  void complete_pauses();
  void publish_stats();
  Scheduler::Admission admission() const;

  const ModelConfig config_;
  const EngineOptions options_;
  PagePool pages_;
  KvCache cache_;
  Scheduler scheduler_;
  WorkerPool pool_;
  Forward forward_;
  std::vector<Sampler> samplers_;  // [workers]
  ModelWeights weights_;
  std::map<SequenceId, std::shared_ptr<Generation>> generations_;  // by arrival
  std::optional<PauseMode> pause_mode_;
  std::vector<std::function<void()>> pauses_;  // whom to tell when the pause is complete
  bool stopping_ = false;
  Clock::time_point step_end_;     // of the last step, or when the thread last woke up
  Batch batch_;                    // of the step in progress
  std::vector<LogitsUse> uses_;    // [batch.logit_rows]
  std::vector<Command> commands_;  // taken from the inbox
  EngineStats counters_;

  // Shared with callers.
  Guarded<std::shared_ptr<const VersionName>> version_;
  Guarded<EngineStats> stats_;
  std::atomic<SequenceId> last_id_ = 0;    // only has to be unique
  std::atomic<std::uint64_t> queued_ = 0;  // never started; a limit, so relaxed will do
  std::atomic<bool> paused_ = false;       // what callers asked for last
  std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  std::vector<Command> inbox_;  // guarded by inbox_mutex_

  std::thread thread_;  // last: it uses all of the above
};

Error out_of_vocabulary(std::string_view what, std::uint64_t id, std::uint64_t vocab_size) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: token id {} is not below the vocabulary's size {}", what, id, vocab_size));
}

Result<void> check_request(const SequenceRequest& request, std::uint64_t vocab_size,
                           std::uint64_t max_model_len) {
  if (request.prompt.empty()) return Error(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (request.prompt.size() > max_model_len) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the prompt has {} tokens, max_model_len is {}", request.prompt.size(),
                             max_model_len));
  }
  const SamplingParams& sampling = request.sampling;
  const auto check_ids = [&](std::string_view what,
                             std::span<const std::uint32_t> ids) -> Result<void> {
    const auto bad = std::ranges::find_if(ids, [&](auto id) { return id >= vocab_size; });
    if (bad != ids.end()) return out_of_vocabulary(what, *bad, vocab_size);
    return {};
  };
  WEFT_TRY_VOID(check_ids("prompt", request.prompt));
  WEFT_TRY_VOID(check_ids("stop_token_ids", sampling.stop_token_ids));
  WEFT_TRY_VOID(check_ids("allowed_token_ids", sampling.allowed_token_ids));
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (id >= vocab_size) return out_of_vocabulary("logit_bias", id, vocab_size);
  }
  return {};
}

Result<SequenceId> EngineImpl::submit(SequenceRequest request) {
  WEFT_TRY_VOID(check_request(request, config_.vocab_size, options_.max_model_len));
  if (queued_.fetch_add(1, std::memory_order_relaxed) >= options_.max_queued) {
    queued_.fetch_sub(1, std::memory_order_relaxed);
    return Error(ErrorCode::kOverloaded,
                 fmt::format("{} sequences are waiting already", options_.max_queued));
  }
  auto generation = std::make_shared<Generation>();
  const SequenceId id = last_id_.fetch_add(1, std::memory_order_relaxed) + 1;
  generation->id = id;
  generation->seed = request.sampling.seed.value_or(0);
  if (!request.sampling.seed) generation->seed = draw_seed();
  generation->prompt_tokens = request.prompt.size();
  generation->max_total_tokens =
      request.prompt.size() +
      std::min(request.sampling.max_tokens, options_.max_model_len - request.prompt.size());
  generation->tokens = std::move(request.prompt);
  generation->sampling = std::move(request.sampling);
  generation->sink = std::move(request.sink);
  if (generation->sampling.prompt_logprobs) {
    generation->prompt_scores.resize(generation->prompt_tokens);
    for (std::size_t i = 0; i < generation->prompt_tokens; ++i) {
      generation->prompt_scores[i].chosen.token = generation->tokens[i];
    }
  }
  post([this, generation] {
    generations_.emplace(generation->id, generation);
    scheduler_.add(*generation);
  });
  return id;
}

void EngineImpl::swap_weights(std::shared_ptr<const WeightSet> weights, VersionName version,
                              std::function<void(SwapReport)> done) {
  auto bound = ModelWeights::bind(config_, std::move(weights));
  // Whoever stages a set has checked it against the layout long before.
  WEFT_CHECK(bound.has_value());
  auto model = std::make_shared<ModelWeights>(std::move(*bound));
  auto name = std::make_shared<const VersionName>(std::move(version));
  post([this, model, name, done = std::move(done)] {
    SwapReport report;
    std::swap(weights_, *model);
    version_.with([&](auto& current) { current = name; });
    report.stall_us = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - step_end_).count());
    report.running = scheduler_.running();
    report.retired = std::move(model->set);
    if (done) done(std::move(report));
  });
}

// ---- The engine's thread ----

void EngineImpl::run() {
  set_thread_name("weft-eng");
  bool idle = true;
  while (true) {
    run_commands(idle);
    publish_stats();
    if (stopping_) break;
    if (pause_mode_ && !(pause_mode_ == PauseMode::kWait && scheduler_.any_started())) {
      complete_pauses();
    }
    const std::span<const Slice> slices = scheduler_.schedule(admission());
    idle = slices.empty();  // nothing changes until a command comes
    if (!idle) step(slices);
  }
  abort_all();
  complete_pauses();
}

// All that has come in; waits for something first if `wait`.
void EngineImpl::run_commands(bool wait) {
  {
    std::unique_lock lock(inbox_mutex_);
    if (wait && inbox_.empty()) {
      inbox_filled_.wait(lock, [this] { return !inbox_.empty(); });
      step_end_ = Clock::now();
    }
    std::swap(commands_, inbox_);
  }
  for (const Command& command : commands_) command();
  commands_.clear();
}

Scheduler::Admission EngineImpl::admission() const {
  if (!pause_mode_) return Scheduler::Admission::kAll;
  return pause_mode_ == PauseMode::kWait ? Scheduler::Admission::kStarted
                                         : Scheduler::Admission::kNone;
}

void EngineImpl::step(std::span<const Slice> slices) {
  const auto begin = Clock::now();
  make_batch(slices);
  forward_.run(weights_, batch_, *this);
  scheduler_.complete();
  const auto version = this->version();
  std::span<LogitsUse> uses = uses_;
  for (const Slice& slice : slices) {
    const auto other = std::ranges::find_if(
        uses, [&](const LogitsUse& use) { return use.generation != slice.sequence; });
    const auto count = static_cast<std::size_t>(other - uses.begin());
    hand_out(slice, uses.first(count), version);
    uses = uses.subspan(count);
  }
  step_end_ = Clock::now();
  ++counters_.steps;
  counters_.step_seconds += std::chrono::duration<double>(step_end_ - begin).count();
}

// All tokens of the slices, and which of them need logits: the last of a sequence to go on, and
// those of a prompt that is to be scored.
void EngineImpl::make_batch(std::span<const Slice> slices) {
  batch_.clear();
  uses_.clear();
  for (const Slice& slice : slices) {
    auto& generation = static_cast<Generation&>(*slice.sequence);
    if (leave_queue(generation)) counters_.prompt_tokens += generation.prompt_tokens;
    for (std::uint64_t position = slice.begin; position < slice.end; ++position) {
      const bool samples = position + 1 == generation.tokens.size() && !generation.is_full();
      const bool scores = generation.wants_prompt_scores() &&
                          position >= generation.prompt_rows_scored &&
                          position + 1 < generation.prompt_tokens;
      if (samples || scores) {
        batch_.logit_rows.push_back(static_cast<std::uint32_t>(batch_.tokens.size()));
        uses_.push_back({&generation, position, samples, {}, {}});
      }
      batch_.tokens.push_back({generation.tokens[position], position, generation.pages});
    }
  }
}

// On a worker's thread.
void EngineImpl::on_logits(unsigned worker, std::size_t row, std::span<const float> logits) {
  LogitsUse& use = uses_[row];
  const Generation& generation = *use.generation;
  Sampler& sampler = samplers_[worker];
  auto scored =
      use.samples ? sampler.sample(logits, {generation.sampling, generation.seed, generation.tokens,
                                            generation.prompt_tokens, end_ids(generation)})
                  : sampler.score(logits, generation.tokens[use.position + 1],
                                  *generation.sampling.prompt_logprobs);
  if (scored) {
    use.scored = std::move(*scored);
  } else {
    use.error = std::move(scored).error();
  }
}

// Tells a sequence what the step gave it. It may have ended after that.
void EngineImpl::hand_out(const Slice& slice, std::span<LogitsUse> uses,
                          const std::shared_ptr<const VersionName>& version) {
  auto& generation = static_cast<Generation&>(*slice.sequence);
  for (LogitsUse& use : uses) {
    if (use.error) {
      finish(generation, {.reason = FinishReason::kError, .error = std::move(use.error)});
      return;
    }
    if (use.samples) continue;
    generation.prompt_scores[use.position + 1] = std::move(use.scored);
    generation.prompt_rows_scored = use.position + 1;
  }
  if (!slice.reaches_end()) return;
  if (generation.wants_prompt_scores()) {
    generation.prompt_reported = true;
    generation.sink->on_prompt(std::move(generation.prompt_scores), version);
  }
  if (generation.is_full()) {  // no token was asked for
    finish(generation, {.reason = FinishReason::kLength});
    return;
  }
  const std::uint32_t token = uses.back().scored.chosen.token;
  generation.tokens.push_back(token);
  ++counters_.generation_tokens;
  generation.sink->on_token({token, std::move(uses.back().scored), version});
  if (auto end = try_end(generation, token)) finish(generation, std::move(*end));
}

std::span<const std::uint32_t> EngineImpl::end_ids(const Generation& generation) const {
  if (generation.sampling.ignore_eos) return {};
  return config_.eos_token_ids;
}

std::optional<FinishEvent> EngineImpl::try_end(const Generation& generation,
                                               std::uint32_t token) const {
  const auto is_in = [token](std::span<const std::uint32_t> ids) {
    return std::ranges::find(ids, token) != ids.end();
  };
  if (is_in(end_ids(generation)) || is_in(generation.sampling.stop_token_ids)) {
    return FinishEvent{.reason = FinishReason::kStop, .stop_token = token};
  }
  if (generation.is_full()) return FinishEvent{.reason = FinishReason::kLength};
  return std::nullopt;
}

void EngineImpl::finish(Generation& generation, FinishEvent event) {
  leave_queue(generation);
  scheduler_.remove(generation);
  ++finished_counter(event.reason);
  const auto ended = generations_.extract(generation.id);
  ended.mapped()->sink->on_finish(std::move(event));
}

std::uint64_t& EngineImpl::finished_counter(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return counters_.finished_stop;
    case FinishReason::kLength:
      return counters_.finished_length;
    case FinishReason::kAbort:
      return counters_.finished_abort;
    case FinishReason::kError:
      break;
  }
  return counters_.finished_error;
}

bool EngineImpl::leave_queue(Generation& generation) {
  if (std::exchange(generation.left_queue, true)) return false;
  queued_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void EngineImpl::abort_all() {
  while (!generations_.empty()) {
    finish(*generations_.begin()->second, {.reason = FinishReason::kAbort});
  }
}

void EngineImpl::complete_pauses() {
  for (const auto& done : std::exchange(pauses_, {})) done();
}

void EngineImpl::publish_stats() {
  counters_.running = scheduler_.running();
  counters_.waiting = scheduler_.waiting();
  counters_.kv_cache_usage =
      1.0 - static_cast<double>(pages_.free_pages()) / static_cast<double>(pages_.total_pages());
  counters_.preemptions = scheduler_.preemptions();
  stats_.with([&](EngineStats& stats) { stats = counters_; });
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const ModelConfig& config, EngineOptions options,
                                               std::shared_ptr<const WeightSet> weights,
                                               VersionName version) {
  WEFT_TRY(ModelWeights model, ModelWeights::bind(config, std::move(weights)));
  WEFT_TRY(const CacheSize size, choose_sizes(config, options));
  WEFT_TRY(KvCache cache, KvCache::create(size.layout, config.num_layers, size.pages));
  try {
    return std::unique_ptr<Engine>(std::make_unique<EngineImpl>(
        config, options, size, std::move(cache), std::move(model), std::move(version)));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("no memory for steps of {} tokens", options.max_num_batched_tokens));
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("cannot start {} threads: {}", options.threads, error.what()));
  }
}

}  // namespace weft
