// Against what transformers computes with checkpoints that it wrote: tests/golden/make_logits.py.

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/engine/engine.h"
#include "weft/engine/forward.h"
#include "weft/engine/tiny_model.h"
#include "weft/model/load.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

struct Golden {
  std::vector<std::uint32_t> prompt;
  std::vector<float> logits;  // [prompt, vocab]
  std::vector<std::uint32_t> greedy;
  std::vector<float> margin;  // [greedy]
};

std::filesystem::path models() {
  return source_dir() / "tests/golden/models";
}

// Takes an array off the front: a count, then four bytes a value.
template <typename T>
std::vector<T> take_array(std::string_view& bytes) {
  std::uint64_t count = 0;
  std::memcpy(&count, bytes.substr(0, sizeof(count)).data(), sizeof(count));
  bytes.remove_prefix(sizeof(count));
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.substr(0, count * sizeof(T)).data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return values;
}

Golden read_golden(const std::string& name) {
  const std::string file = blocking_read_file(models() / (name + ".golden")).value();
  std::string_view bytes = file;
  Golden golden;
  golden.prompt = take_array<std::uint32_t>(bytes);
  golden.logits = take_array<float>(bytes);
  golden.greedy = take_array<std::uint32_t>(bytes);
  golden.margin = take_array<float>(bytes);
  return golden;
}

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// All logits of a prompt, in one batch.
class AllLogits final : public LogitsConsumer {
 public:
  AllLogits(std::size_t rows, std::size_t vocab) : vocab_(vocab), logits_(rows * vocab) {}
  void on_logits(unsigned, std::size_t row, std::span<const float> logits) override {
    std::ranges::copy(logits, logits_.begin() + static_cast<std::ptrdiff_t>(row * vocab_));
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  std::size_t vocab_;
  std::vector<float> logits_;
};

std::vector<float> logits_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> prompt,
                             kernels::Summation summation) {
  const ModelConfig& config = checkpoint.config;
  const auto weights = ModelWeights::bind(config, checkpoint.weights).value();
  const auto cache =
      KvCache::create({config.num_kv_heads, config.head_dim, 16}, config.num_layers, 8).value();
  const std::vector<std::uint32_t> pages{3, 0, 7, 1, 2, 4, 5, 6};
  WorkerPool pool(2);
  Forward forward(config, summation, prompt.size(), cache, pool);
  Batch batch;
  for (std::uint32_t position = 0; position < prompt.size(); ++position) {
    batch.tokens.push_back({prompt[position], position, pages});
    batch.logit_rows.push_back(position);
  }
  AllLogits all(prompt.size(), config.vocab_size);
  forward.run(weights, batch, all);
  return all.logits();
}

class EngineGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineGolden, LogitsAreThoseOfTransformers) {
  const Golden golden = read_golden(GetParam());
  const auto checkpoint = blocking_load_checkpoint(models() / GetParam(), std::nullopt).value();
  const float bound = 1e-4f * largest_magnitude(golden.logits);
  for (const auto summation : {kernels::Summation::kFast, kernels::Summation::kExact}) {
    const auto logits = logits_of(checkpoint, golden.prompt, summation);
    ASSERT_EQ(logits.size(), golden.logits.size());
    float difference = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      difference = std::max(difference, std::abs(logits[i] - golden.logits[i]));
    }
    EXPECT_LE(difference, bound);
    RecordProperty("difference", std::to_string(difference / bound));
  }
}

TEST_P(EngineGolden, GreedyTextIsThatOfTransformers) {
  const Golden golden = read_golden(GetParam());
  const auto checkpoint = blocking_load_checkpoint(models() / GetParam(), std::nullopt).value();
  const float bound = 1e-4f * largest_magnitude(golden.logits);
  for (const bool deterministic : {false, true}) {
    const auto engine =
        Engine::create(checkpoint.config, {.threads = 2, .deterministic = deterministic},
                       checkpoint.weights, {})
            .value();
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = golden.greedy.size();
    params.ignore_eos = true;
    const auto sink = std::make_shared<testing::RecordingSink>();
    engine->submit({golden.prompt, params, sink, ""}).value();
    sink->blocking_finish();
    const auto tokens = sink->tokens();
    ASSERT_EQ(tokens.size(), golden.greedy.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (golden.margin[i] <= bound) break;  // a tie: what follows may differ
      ASSERT_EQ(tokens[i], golden.greedy[i]) << "token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineGolden,
                         ::testing::Values("llama", "llama_bias", "qwen2", "qwen3", "qwen3_bf16"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace weft
