#pragma once
// For tests: small models with weights from a seed, a sink that remembers what it was told, and
// short forms of calls.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/engine/engine.h"
#include "weft/engine/request.h"
#include "weft/model/config.h"
#include "weft/tensor/weight_set.h"

namespace weft::testing {

// A Qwen3 with two layers, grouped heads and a vocabulary of 64.
ModelConfig tiny_config();
// Every weight from a normal distribution of deviation 0.2 (norms about 1), the same for the same
// seed.
std::shared_ptr<WeightSet> tiny_weights(const ModelConfig& config, DType dtype, std::uint64_t seed);

// Remembers everything. Thread-safe.
class RecordingSink final : public SequenceSink {
 public:
  // With the `count`-th token, `call` is called on the engine's thread: what it asks of the engine
  // happens before the next token. Before the sink is submitted.
  void at_token(std::size_t count, std::function<void()> call) {
    call_at_ = count;
    call_ = std::move(call);
  }
  void on_prompt(std::vector<ScoredToken> prompt,
                 std::shared_ptr<const VersionName> version) override;
  void on_token(TokenEvent event) override;
  void on_finish(FinishEvent event) override;

  // Blocks until on_finish.
  FinishEvent blocking_finish();
  // Blocks until so many tokens have come, or it has finished.
  void blocking_tokens(std::size_t count);

  std::vector<ScoredToken> prompt() const { return read(prompt_); }
  std::vector<TokenEvent> events() const { return read(events_); }
  std::vector<std::uint32_t> tokens() const;
  std::size_t finish_count() const { return read(finish_count_); }

 private:
  template <typename T>
  T read(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  std::size_t call_at_ = 0;
  std::function<void()> call_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ScoredToken> prompt_;
  std::vector<TokenEvent> events_;
  std::optional<FinishEvent> finish_;
  std::size_t finish_count_ = 0;
};

VersionName named(std::string label);

// At temperature 0, end tokens ignored.
SamplingParams greedy(std::uint64_t max_tokens);

struct Submitted {
  SequenceId id;
  std::shared_ptr<RecordingSink> sink;
};
// Requires: the engine takes it.
Submitted submit(Engine& engine, std::vector<std::uint32_t> prompt, SamplingParams sampling,
                 std::string cache_salt = "");

// Blocks until the pause is complete; what was asked before has been done then.
void blocking_pause(Engine& engine, PauseMode mode, bool clear_cache = false);

}  // namespace weft::testing
