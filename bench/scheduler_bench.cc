// What a step costs beside the model: 64 sequences that decode, each with a page boundary now and
// then, on the smallest model there can be (one layer of 16 numbers, a window of 16 tokens, 16
// tokens to choose from). A step of the whole engine is measured (commands, scheduler, batch,
// sampler, events), then the model's part of it by itself; the scheduler's figure is the
// difference. One thread works, and its CPU time is what counts: where a machine does other things
// as well, the time that passes says little. Last line: BENCH {json}, medians of 5 runs.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <future>
#include <memory>
#include <vector>

#include <fmt/core.h>

#include "weft/engine/engine.h"
#include "weft/engine/forward.h"
#include "weft/engine/scheduler.h"

namespace weft {
namespace {

constexpr std::uint64_t kSequences = 64;
constexpr std::uint64_t kPromptTokens = 40;
constexpr std::uint64_t kNewTokens = 2000;
constexpr int kRuns = 5;

// CPU time of this process.
double microseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

void require(bool holds, const char* what) {
  if (holds) return;
  fmt::print(stderr, "scheduler_bench: {}\n", what);
  std::exit(1);
}

ModelConfig smallest_config() {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.vocab_size = config.hidden_size = config.intermediate_size = config.head_dim = 16;
  config.num_layers = config.num_heads = config.num_kv_heads = 1;
  config.max_position_embeddings = kPromptTokens + kNewTokens;
  config.sliding_window = 16;
  config.sliding_layers = {true};
  return config;
}

std::shared_ptr<const WeightSet> zeros(const ModelConfig& config) {
  std::vector<TensorSpec> specs = expected_tensors(config);
  for (TensorSpec& spec : specs) spec.dtype = DType::kBF16;
  auto layout = std::make_shared<const WeightLayout>(WeightLayout::make(std::move(specs)).value());
  return WeightSet::blocking_allocate(layout).value();
}

class Counter final : public SequenceSink {
 public:
  void on_prompt(std::vector<ScoredToken>, std::shared_ptr<const VersionName>) override {}
  void on_token(TokenEvent) override { ++tokens_; }
  void on_finish(FinishEvent) override { ended_.set_value(tokens_); }
  std::uint64_t blocking_tokens() { return ended_.get_future().get(); }

 private:
  std::uint64_t tokens_ = 0;
  std::promise<std::uint64_t> ended_;
};

// Microseconds a step, of one run.
double run_engine(Engine& engine) {
  const std::uint64_t steps_before = engine.stats().steps;
  std::promise<void> paused;
  engine.pause(PauseMode::kKeep, true, [&] { paused.set_value(); });
  paused.get_future().get();
  std::vector<std::shared_ptr<Counter>> counters;
  for (std::uint32_t i = 0; i < kSequences; ++i) {
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = kNewTokens;
    params.ignore_eos = true;
    counters.push_back(std::make_shared<Counter>());
    const std::vector<std::uint32_t> prompt(kPromptTokens, i % 16);
    engine.submit({prompt, params, counters.back(), ""}).value();
  }
  const double begin = microseconds();
  engine.resume();
  for (const auto& counter : counters) {
    require(counter->blocking_tokens() == kNewTokens, "a sequence has too few tokens");
  }
  const double all = microseconds() - begin;
  // Pause and resume are no steps; the last one's count is told after its events.
  engine.pause(PauseMode::kWait, false, {});
  engine.resume();
  while (engine.stats().running > 0) {
  }
  const std::uint64_t steps = engine.stats().steps - steps_before;
  require(steps >= kNewTokens && steps < kNewTokens + 10, "not all sequences in one step");
  return all / static_cast<double>(steps);
}

class NoLogits final : public LogitsConsumer {
 public:
  void on_logits(unsigned, std::size_t, std::span<const float>) override {}
};

// The forward pass of such a step.
double run_model(const ModelConfig& config, const std::shared_ptr<const WeightSet>& weights) {
  const auto model = ModelWeights::bind(config, weights).value();
  const auto cache = KvCache::create({1, config.head_dim, 16}, 1, kSequences).value();
  WorkerPool pool(1);
  Forward forward(config, kernels::Summation::kFast, kSequences, cache, pool);
  std::vector<std::array<std::uint32_t, 2>> pages(kSequences);
  Batch batch;
  for (std::uint32_t i = 0; i < kSequences; ++i) {
    pages[i] = {i, i};
    batch.tokens.push_back({1, 24, pages[i]});
    batch.logit_rows.push_back(i);
  }
  NoLogits nobody;
  const double begin = microseconds();
  for (std::uint64_t step = 0; step < kNewTokens; ++step) forward.run(model, batch, nobody);
  return (microseconds() - begin) / kNewTokens;
}

double run_scheduler() {
  PagePool pool(kSequences * ((kPromptTokens + kNewTokens) / 16 + 1));
  Scheduler scheduler({.max_num_batched_tokens = 4096}, pool);
  std::vector<Sequence> sequences(kSequences);
  for (std::uint32_t i = 0; i < kSequences; ++i) {
    sequences[i].tokens.assign(kPromptTokens, i);
    scheduler.add(sequences[i]);
  }
  const double begin = microseconds();
  for (std::uint64_t step = 0; step < kNewTokens; ++step) {
    require(scheduler.schedule(Scheduler::Admission::kAll).size() == kSequences,
            "not all sequences in one step");
    scheduler.complete();
    for (Sequence& sequence : sequences) sequence.tokens.push_back(1);
  }
  return (microseconds() - begin) / kNewTokens;
}

double median(std::array<double, kRuns> runs) {
  std::ranges::sort(runs);
  return runs[kRuns / 2];
}

void measure() {
  const ModelConfig config = smallest_config();
  const auto weights = zeros(config);
  const auto engine = Engine::create(config, {.threads = 1}, weights, {}).value();
  run_engine(*engine);  // pages are touched for the first time
  std::array<double, kRuns> step{}, model{}, beside{}, scheduler{};
  for (std::size_t run = 0; run < kRuns; ++run) {
    step[run] = run_engine(*engine);
    model[run] = run_model(config, weights);
    beside[run] = step[run] - model[run];
    scheduler[run] = run_scheduler();
    fmt::print("  run {}  step {:6.2f} us, its model {:6.2f}, class Scheduler {:6.2f}\n", run + 1,
               step[run], model[run], scheduler[run]);
  }
  fmt::print(
      "BENCH {{\"bench\": \"scheduler\", \"sequences\": {}, \"scheduler_us_per_step\": {:.2f}, "
      "\"step_us\": {:.2f}, \"model_us\": {:.2f}, \"class_scheduler_us\": {:.2f}, \"goal\": "
      "100}}\n",
      kSequences, median(beside), median(step), median(model), median(scheduler));
}

}  // namespace
}  // namespace weft

int main() {
  weft::measure();
}
