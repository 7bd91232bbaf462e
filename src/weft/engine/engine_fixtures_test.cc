// Checkpoints whose output is known exactly: tests/fixtures/fixtures.py, made by CTest's fixture
// `checkpoints`.

#include <future>

#include <gtest/gtest.h>

#include "weft/engine/engine.h"
#include "weft/engine/tiny_model.h"
#include "weft/model/load.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

using testing::RecordingSink;

Checkpoint load(const std::string& name, std::optional<DType> dtype = std::nullopt) {
  return blocking_load_checkpoint(binary_dir() / "fixtures" / name, dtype).value();
}

std::unique_ptr<Engine> serve(const Checkpoint& checkpoint) {
  return Engine::create(checkpoint.config, {.threads = 2, .deterministic = true},
                        checkpoint.weights, {.id = "", .label = "first"})
      .value();
}

SamplingParams greedy(std::uint64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.logprobs = 0;
  return params;
}

std::shared_ptr<RecordingSink> start(Engine& engine, std::string_view prompt,
                                     const SamplingParams& params) {
  auto sink = std::make_shared<RecordingSink>();
  std::vector<std::uint32_t> ids;
  for (const char c : prompt) ids.push_back(static_cast<unsigned char>(c));
  engine.submit({ids, params, sink, ""}).value();
  return sink;
}

// Token ids of these fixtures are bytes, but for the specials.
std::string text_of(const RecordingSink& sink) {
  std::string text;
  for (const std::uint32_t id : sink.tokens()) text += id < 256 ? static_cast<char>(id) : '$';
  return text;
}

std::string generate(Engine& engine, std::string_view prompt, std::uint64_t max_tokens) {
  const auto sink = start(engine, prompt, greedy(max_tokens));
  sink->blocking_finish();
  return text_of(*sink);
}

float logprob_of(Engine& engine, std::string_view prompt, std::uint32_t token) {
  SamplingParams params = greedy(1);
  params.allowed_token_ids = {token};
  const auto sink = start(engine, prompt, params);
  sink->blocking_finish();
  return sink->events().at(0).scored.chosen.logprob;
}

TEST(EngineFixtures, GiveTheirKnownText) {
  for (const char* const name : {"P_llama", "P_qwen2", "P_qwen3"}) {
    EXPECT_EQ(generate(*serve(load(name)), "A", 9), "BCDEFGHIJ") << name;
  }
  EXPECT_EQ(generate(*serve(load("P2")), "A", 4), "CEGI");
  EXPECT_EQ(generate(*serve(load("P2", DType::kF32)), "A", 4), "CEGI");
  EXPECT_EQ(generate(*serve(load("T_tied")), "A", 3), "AAA");
  EXPECT_EQ(generate(*serve(load("chain")), ">", 20), "a😊b$");
}

TEST(EngineFixtures, AttentionAveragesOverAllPositions) {
  const std::string prompt(64, 'x');
  const auto one = serve(load("U1"));
  EXPECT_EQ(generate(*one, prompt, 3), "111");
  EXPECT_NEAR(logprob_of(*one, prompt, '1'), -0.516, 0.01);
  EXPECT_NEAR(logprob_of(*one, prompt, '2'), -6.511, 0.05);
}

TEST(EngineFixtures, LogprobsAreRawWhateverTheTemperature) {
  const auto engine = serve(load("W"));
  for (const double temperature : {1.0, 0.5, 2.0}) {
    SamplingParams params = greedy(1);
    params.temperature = temperature;
    params.logit_bias = {{97, 100.0f}};
    const auto sink = start(*engine, ">", params);
    sink->blocking_finish();
    EXPECT_NEAR(sink->events().at(0).scored.chosen.logprob, -0.5425, 0.01);
  }
  EXPECT_NEAR(logprob_of(*engine, ">", 98), -3.5416, 0.02);
}

// `3` would be a torn read, `9` new weights over old keys and values.
TEST(EngineFixtures, AfterASwapWithAClearedCacheNoOldKeyIsRead) {
  const auto old_version = load("U1");
  const auto new_version = load("U2x");
  for (const bool clear_cache : {true, false}) {
    const auto engine = serve(old_version);
    SamplingParams params = greedy(400);
    params.ignore_eos = true;
    const auto sink = start(*engine, std::string(64, 'x'), params);
    sink->blocking_tokens(5);
    std::promise<void> swapped;
    engine->pause(PauseMode::kKeep, clear_cache, [] {});
    engine->swap_weights(new_version.weights, {.version = {.id = "", .label = "second"}},
                         [&](SwapReport) { swapped.set_value(); });
    swapped.get_future().get();
    const std::size_t before = sink->tokens().size();
    engine->resume();
    sink->blocking_finish();

    const std::string text = text_of(*sink);
    ASSERT_LT(before, text.size());
    EXPECT_EQ(text.substr(0, before), std::string(before, '1'));
    EXPECT_EQ(text[before], clear_cache ? '2' : '9');
    EXPECT_EQ(text.find('3'), std::string::npos);
    EXPECT_EQ(sink->events()[before].version->label, "second");
    EXPECT_EQ(generate(*engine, std::string(64, 'x'), 3), "222");
  }
}

}  // namespace
}  // namespace weft
