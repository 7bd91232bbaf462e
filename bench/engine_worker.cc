// The engine's side of engine_bench.py. `engine_worker FOLDER THREADS` loads a checkpoint and obeys
// standard input, one command a line, one JSON object a line back:
//   run fast|exact SEQUENCES PROMPT NEW   prompts of so many tokens at once, then NEW tokens of
//                                         each; seconds of both, and the tokens they made
//   peaks                                 what memory and multipliers give: bytes and flops a
//   second

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "peaks.h"
#include "weft/engine/engine.h"
#include "weft/model/load.h"

namespace weft::bench {
namespace {

namespace json = boost::json;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// When all sequences of a run had their first token, and when they had ended. Thread-safe.
class Times final : public SequenceSink {
 public:
  explicit Times(std::size_t sequences) : running_(sequences) {}

  void on_prompt(std::vector<ScoredToken>, std::shared_ptr<const VersionName>) override {}
  void on_token(TokenEvent) override {
    const std::lock_guard lock(mutex_);
    last_s_ = now_s();
    // The engine tells all sequences of a step one after the other.
    if (++tokens_ <= sequences_) first_s_ = last_s_;
  }
  void on_finish(FinishEvent event) override {
    const std::lock_guard lock(mutex_);
    if (event.error) error_ = std::move(event.error);
    if (--running_ == 0) ended_.notify_all();
  }

  Result<json::object> blocking_result(double begin_s, std::size_t prompt_tokens) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
    if (error_) return std::move(*error_);
    return json::object{{"prompt_s", first_s_ - begin_s},
                        {"prompt_tokens", prompt_tokens},
                        {"decode_s", last_s_ - first_s_},
                        {"decode_tokens", tokens_ - sequences_}};
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t running_;
  const std::size_t sequences_ = running_;
  std::size_t tokens_ = 0;
  double first_s_ = 0, last_s_ = 0;
  std::optional<Error> error_;
};

class Bench {
 public:
  static Result<Bench> blocking_load(const std::string& folder, unsigned threads) {
    WEFT_TRY(Checkpoint checkpoint, blocking_load_checkpoint(folder, std::nullopt));
    Bench bench;
    bench.threads_ = threads;
    for (const bool exact : {false, true}) {
      const EngineOptions options{.threads = threads,
                                  .max_model_len = 2048,
                                  .max_num_seqs = 64,
                                  .kv_cache_bytes = 1u << 30,
                                  .deterministic = exact};
      WEFT_TRY(bench.engines_[exact],
               Engine::create(checkpoint.config, options, checkpoint.weights, {}));
    }
    bench.weights_ = checkpoint.weights;
    return bench;
  }

  Result<json::object> obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "run") {
      std::string mode;
      std::size_t sequences = 0, prompt = 0, tokens = 0;
      words >> mode >> sequences >> prompt >> tokens;
      return run(*engines_[mode == "exact"], sequences, prompt, tokens);
    }
    if (command == "peaks") {
      // Of the weights themselves, and in the pages they have.
      const std::span<const std::byte> all(weights_->tensor(0).data(),
                                           weights_->layout().size_bytes());
      return json::object{{"read_bytes_per_s", blocking_read_rate(all, threads_)},
                          {"flops_per_s", blocking_flop_rate(threads_)},
                          {"weight_bytes", weights_->layout().payload_bytes()}};
    }
    return Error(ErrorCode::kInvalidArgument, fmt::format("no such command: {}", line));
  }

 private:
  // All at once: the engine is paused until every sequence is there.
  static Result<json::object> run(Engine& engine, std::size_t sequences, std::size_t prompt_tokens,
                                  std::size_t new_tokens) {
    const auto times = std::make_shared<Times>(sequences);
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = new_tokens;
    params.ignore_eos = true;
    engine.pause(PauseMode::kKeep, false, [] {});
    static std::uint32_t seed = 0;  // no prompt comes twice: nothing is cached
    for (std::size_t i = 0; i < sequences; ++i) {
      std::vector<std::uint32_t> prompt(prompt_tokens);
      for (std::uint32_t& id : prompt) {
        seed = seed * 1664525 + 1013904223;
        id = (seed >> 8) % static_cast<std::uint32_t>(engine.config().vocab_size);
      }
      WEFT_TRY_VOID(engine.submit({std::move(prompt), params, times, ""}));
    }
    const double begin_s = now_s();
    engine.resume();
    return times->blocking_result(begin_s, sequences * prompt_tokens);
  }

  unsigned threads_ = 1;
  std::unique_ptr<Engine> engines_[2];  // fast, exact
  std::shared_ptr<const WeightSet> weights_;
};

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: engine_worker FOLDER THREADS\n");
    return 2;
  }
  auto bench =
      weft::bench::Bench::blocking_load(argv[1], static_cast<unsigned>(std::atoi(argv[2])));
  if (!bench) {
    std::fprintf(stderr, "engine_worker: %s\n", bench.error().message().c_str());
    return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = bench->obey(line);
    const boost::json::object object =
        answer ? *answer : boost::json::object{{"error", answer.error().message()}};
    std::printf("%s\n", boost::json::serialize(object).c_str());
    std::fflush(stdout);
  }
  return 0;
}
