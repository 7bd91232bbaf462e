// Against what transformers computes: with checkpoints that it wrote (tests/golden/make_logits.py),
// and with weights from a seed, of models of every kind (tests/golden/make_matrix.py).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/engine/engine.h"
#include "weft/engine/forward.h"
#include "weft/engine/tiny_model.h"
#include "weft/kernels/convert.h"
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

std::filesystem::path golden_dir() {
  return source_dir() / "tests/golden";
}
std::filesystem::path models() {
  return golden_dir() / "models";
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

float largest_difference(std::span<const float> first, std::span<const float> second) {
  if (first.size() != second.size()) return std::numeric_limits<float>::infinity();
  float largest = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    largest = std::max(largest, std::abs(first[i] - second[i]));
  }
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

std::vector<float> logits_of(const ModelConfig& config, const std::shared_ptr<const WeightSet>& set,
                             std::span<const std::uint32_t> prompt, kernels::Summation summation) {
  const auto weights = ModelWeights::bind(config, set).value();
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
    const auto logits = logits_of(checkpoint.config, checkpoint.weights, golden.prompt, summation);
    const float difference = largest_difference(logits, golden.logits);
    EXPECT_LE(difference, bound);
    RecordProperty("difference", std::to_string(difference / bound));
  }
}

std::vector<std::uint32_t> greedy_text(const ModelConfig& config,
                                       const std::shared_ptr<const WeightSet>& weights,
                                       const std::vector<std::uint32_t>& prompt, std::size_t tokens,
                                       bool deterministic) {
  const EngineOptions options{.threads = 2,
                              .max_model_len = prompt.size() + tokens,
                              .kv_cache_bytes = 8u << 20,
                              .deterministic = deterministic};
  const auto engine = Engine::create(config, options, weights, {}).value();
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = tokens;
  params.ignore_eos = true;
  const auto sink = std::make_shared<testing::RecordingSink>();
  engine->submit({prompt, params, sink, ""}).value();
  sink->blocking_finish();
  return sink->tokens();
}

TEST_P(EngineGolden, GreedyTextIsThatOfTransformers) {
  const Golden golden = read_golden(GetParam());
  const auto checkpoint = blocking_load_checkpoint(models() / GetParam(), std::nullopt).value();
  const float bound = 1e-4f * largest_magnitude(golden.logits);
  for (const bool deterministic : {false, true}) {
    const auto tokens = greedy_text(checkpoint.config, checkpoint.weights, golden.prompt,
                                    golden.greedy.size(), deterministic);
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

// ---- The matrix ----

struct MatrixModel {
  ModelConfig config;
  std::uint32_t seed = 0;
  std::vector<std::uint32_t> prompt;
  std::vector<float> logits;          // [prompt, vocab]
  std::vector<std::uint32_t> greedy;  // no tie on its way
  std::vector<float> own;             // [prompt, vocab], computed in the weights' dtype; or empty
};

MatrixModel read_matrix_model(const std::string& name) {
  const auto folder = golden_dir() / "matrix";
  MatrixModel model;
  model.config = ModelConfig::parse(blocking_read_file(folder / (name + ".json")).value()).value();
  const std::string file = blocking_read_file(folder / (name + ".golden")).value();
  std::string_view bytes = file;
  model.seed = take_array<std::uint32_t>(bytes).at(0);
  model.prompt = take_array<std::uint32_t>(bytes);
  model.logits = take_array<float>(bytes);
  model.greedy = take_array<std::uint32_t>(bytes);
  model.own = take_array<float>(bytes);
  return model;
}

// What weights() of make_matrix.py draws.
void matrix_weights(std::uint32_t seed, const std::string& name, std::span<float> values) {
  std::uint64_t state = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  state += seed;
  const bool is_norm = name.find("norm") != std::string::npos;
  for (float& value : values) {
    std::uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const auto steps = static_cast<std::int64_t>(z >> 40) - (1 << 23);
    value = static_cast<float>(steps) / (1 << 23) * 0.35f + (is_norm ? 1.0f : 0.0f);
  }
}

std::shared_ptr<const WeightSet> matrix_weight_set(const MatrixModel& model) {
  const auto layout = std::make_shared<const WeightLayout>(
      WeightLayout::make(expected_tensors(model.config)).value());
  auto set = WeightSet::blocking_allocate(layout).value();
  for (std::size_t i = 0; i < layout->tensors().size(); ++i) {
    const TensorSpec& spec = layout->tensors()[i];
    std::vector<float> values(shape_elems(spec.shape).value());
    matrix_weights(model.seed, spec.name, values);
    kernels::convert(std::as_bytes(std::span(values)), DType::kF32, set->tensor(i), spec.dtype);
  }
  return set;
}

// How far transformers may be, of the largest logit, when it rounds every intermediate result to
// bf16 or fp16, where the engine computes in fp32. With u the unit roundoff (2^-8, 2^-11), a
// rounding is off by 0.42 u of the value in the mean square. The way of a number through a layer
// has about 20 of them (norms 4, rope 3, products 5, scores, softmax, SiLU, sums and the like 8)
// and through the head 3; they are independent, so their squares add. The largest error over a
// prompt is as many deviations from 0 as the largest logit. An error of scores counts up to five
// times: a weight is exp() of them, and they reach 5 here. So 0.42 * 5 = 2 each, at most. Seen: up
// to 0.6 of the bound.
float own_dtype_bound(const ModelConfig& config) {
  const float u = config.dtype == DType::kBF16 ? 0x1p-8f : 0x1p-11f;
  return 2 * u * std::sqrt(20 * static_cast<float>(config.num_layers) + 3);
}

std::vector<std::string> matrix_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_dir() / "matrix")) {
    if (entry.path().extension() == ".golden") names.push_back(entry.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

class EngineMatrix : public ::testing::TestWithParam<std::string> {};

TEST_P(EngineMatrix, LogitsAreThoseOfTransformers) {
  const MatrixModel model = read_matrix_model(GetParam());
  const auto weights = matrix_weight_set(model);
  const float largest = largest_magnitude(model.logits);
  for (const auto summation : {kernels::Summation::kFast, kernels::Summation::kExact}) {
    const auto logits = logits_of(model.config, weights, model.prompt, summation);
    const float difference = largest_difference(logits, model.logits) / largest;
    EXPECT_LE(difference, 1e-4f);
    if (model.own.empty()) continue;
    EXPECT_LE(largest_difference(logits, model.own) / largest, own_dtype_bound(model.config));
  }
}

TEST_P(EngineMatrix, GreedyTextIsThatOfTransformers) {
  const MatrixModel model = read_matrix_model(GetParam());
  const auto weights = matrix_weight_set(model);
  for (const bool deterministic : {false, true}) {
    EXPECT_EQ(greedy_text(model.config, weights, model.prompt, model.greedy.size(), deterministic),
              model.greedy);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineMatrix, ::testing::ValuesIn(matrix_names()),
                         [](const auto& name) { return name.param; });

TEST(EngineMatrixNames, AreAtLeastTwentyFour) {
  EXPECT_GE(matrix_names().size(), 24u);
}

}  // namespace
}  // namespace weft
