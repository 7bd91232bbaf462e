#include "weft/engine/tiny_model.h"

#include <future>
#include <random>
#include <utility>

#include "weft/kernels/convert.h"

namespace weft::testing {

ModelConfig tiny_config() {
  ModelConfig config;
  config.architecture = Architecture::kQwen3;
  config.vocab_size = 64;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 256;
  config.qk_norm = true;
  config.eos_token_ids = {0};
  return config;
}

std::shared_ptr<WeightSet> tiny_weights(const ModelConfig& config, DType dtype,
                                        std::uint64_t seed) {
  std::vector<TensorSpec> specs = expected_tensors(config);
  for (TensorSpec& spec : specs) spec.dtype = dtype;
  auto layout = std::make_shared<const WeightLayout>(WeightLayout::make(std::move(specs)).value());
  auto set = WeightSet::blocking_allocate(layout).value();
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.2f);
  for (std::size_t i = 0; i < layout->tensors().size(); ++i) {
    const TensorSpec& spec = layout->tensors()[i];
    const bool is_norm = spec.name.find("norm") != std::string::npos;
    std::vector<float> values(shape_elems(spec.shape).value());
    for (float& value : values) value = normal(random) + (is_norm ? 1.0f : 0.0f);
    kernels::convert(std::as_bytes(std::span(values)), DType::kF32, set->tensor(i), dtype);
  }
  return set;
}

void RecordingSink::on_prompt(std::vector<ScoredToken> prompt, std::shared_ptr<const VersionName>) {
  const std::lock_guard lock(mutex_);
  prompt_ = std::move(prompt);
}

void RecordingSink::on_token(TokenEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  if (events_.size() == call_at_) call_();
  changed_.notify_all();
}

void RecordingSink::on_finish(FinishEvent event) {
  const std::lock_guard lock(mutex_);
  finish_ = std::move(event);
  ++finish_count_;
  changed_.notify_all();
}

FinishEvent RecordingSink::blocking_finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finish_.has_value(); });
  return *finish_;
}

void RecordingSink::blocking_tokens(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finish_.has_value() || events_.size() >= count; });
}

std::vector<std::uint32_t> RecordingSink::tokens() const {
  std::vector<std::uint32_t> tokens;
  for (const TokenEvent& event : events()) tokens.push_back(event.token);
  return tokens;
}

VersionName named(std::string label) {
  return {.id = "blake3:" + label, .label = label};
}

SamplingParams greedy(std::uint64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

Submitted submit(Engine& engine, std::vector<std::uint32_t> prompt, SamplingParams sampling,
                 std::string cache_salt) {
  auto sink = std::make_shared<RecordingSink>();
  auto id = engine.submit({std::move(prompt), std::move(sampling), sink, std::move(cache_salt)});
  return {id.value(), std::move(sink)};
}

void blocking_pause(Engine& engine, PauseMode mode, bool clear_cache) {
  std::promise<void> done;
  engine.pause(mode, clear_cache, [&] { done.set_value(); });
  done.get_future().get();
}

}  // namespace weft::testing
