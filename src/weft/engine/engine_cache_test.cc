// The prefix cache in the engine. The exact mode lets tokens and log-probabilities be compared bit
// for bit with engines that never shared anything.

#include <future>

#include <gtest/gtest.h>

#include "weft/engine/engine.h"
#include "weft/engine/tiny_model.h"

namespace weft {
namespace {

using testing::blocking_pause;
using testing::greedy;
using testing::named;
using testing::submit;
using testing::Submitted;
using testing::tiny_config;
using testing::tiny_weights;

using Weights = std::shared_ptr<WeightSet>;

Weights weights_of(std::uint64_t seed) {
  return tiny_weights(tiny_config(), DType::kBF16, seed);
}

std::vector<std::uint32_t> prompt_of(std::size_t tokens) {
  std::vector<std::uint32_t> prompt(tokens);
  for (std::size_t i = 0; i < tokens; ++i) prompt[i] = static_cast<std::uint32_t>(i * 5 % 64);
  return prompt;
}

class EngineCache : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make(Weights weights, EngineOptions options = {}) {
    options.threads = 1;
    options.deterministic = true;
    return Engine::create(tiny_config(), options, std::move(weights), named("one")).value();
  }
  std::vector<std::uint32_t> fresh(std::uint64_t seed, std::vector<std::uint32_t> prompt,
                                   std::uint64_t tokens) {
    const auto engine = make(weights_of(seed), {.prefix_caching = false});
    const auto sequence = submit(*engine, std::move(prompt), greedy(tokens));
    sequence.sink->blocking_finish();
    return sequence.sink->tokens();
  }
  // How many tokens of a prompt of 50 are found now; 48 are in full pages.
  std::uint64_t found(const std::string& salt = "") {
    const auto sequence = submit(*engine_, prompt_of(50), greedy(3), salt);
    return sequence.sink->blocking_finish().cached_tokens;
  }
  void blocking_swap(Weights weights, OnUpdate on_update = OnUpdate::kContinue) {
    std::promise<void> done;
    engine_->swap_weights(std::move(weights), {named("two"), on_update},
                          [&](SwapReport) { done.set_value(); });
    done.get_future().get();
  }
  // Stands paused after `tokens` tokens.
  Submitted blocking_submit_half(std::vector<std::uint32_t> prompt, std::size_t tokens) {
    auto sink = std::make_shared<testing::RecordingSink>();
    sink->at_token(tokens, [this] { engine_->pause(PauseMode::kKeep, false, {}); });
    const auto id = engine_->submit({std::move(prompt), greedy(100), sink, ""}).value();
    sink->blocking_tokens(tokens);
    return {id, sink};
  }

  Weights first_ = weights_of(1);
  std::unique_ptr<Engine> engine_ = make(first_);
};

TEST_F(EngineCache, FindsAPromptAgainUnderTheSameSaltAlone) {
  EXPECT_EQ(found(), 0u);
  EXPECT_EQ(found(), 48u);
  EXPECT_EQ(found("salt"), 0u);
  EXPECT_EQ(found("salt"), 48u);
  EXPECT_EQ(engine_->stats().prefix_cache_hits, 0u + 48 + 0 + 48);
  EXPECT_EQ(engine_->stats().prefix_cache_queries, 4u * 50);
}

TEST_F(EngineCache, ARenameKeepsItAndAChangeOfWeightsDoesNot) {
  found();
  engine_->rename_version(named("other"));
  EXPECT_EQ(found(), 48u);

  blocking_swap(weights_of(2));
  EXPECT_EQ(found(), 0u);
  EXPECT_EQ(found(), 48u);
  const auto sequence = submit(*engine_, prompt_of(50), greedy(20));
  sequence.sink->blocking_finish();
  EXPECT_EQ(sequence.sink->tokens(), fresh(2, prompt_of(50), 20));

  engine_->rename_version(named("one"));  // as the first set was called
  EXPECT_EQ(found(), 48u);
  blocking_swap(first_);
  const auto back = submit(*engine_, prompt_of(50), greedy(20));
  back.sink->blocking_finish();
  EXPECT_EQ(back.sink->tokens(), fresh(1, prompt_of(50), 20));
}

TEST_F(EngineCache, APatchChangesTheWeightsTooAndOneThatFailsDoesNot) {
  found();
  for (const bool fails : {true, false}) {
    std::promise<void> done;
    engine_->patch_weights(
        [&]() -> Result<void> {
          if (fails) return Error(ErrorCode::kCorrupt, "the base differs");
          return {};
        },
        {.version = named("two")}, [&](const Result<SwapReport>&) { done.set_value(); });
    done.get_future().get();
    EXPECT_EQ(found(), fails ? 48u : 0u);
  }
}

TEST_F(EngineCache, WhatASequenceHasFromOlderWeightsIsOfferedToNobody) {
  const auto running = blocking_submit_half(prompt_of(50), 20);
  blocking_swap(weights_of(2), OnUpdate::kContinue);
  engine_->resume();
  running.sink->blocking_finish();
  // A conversation that goes on from all of it, and one from the prompt.
  auto whole = prompt_of(50);
  for (const std::uint32_t token : running.sink->tokens()) whole.push_back(token);
  const auto after = submit(*engine_, whole, greedy(20));
  EXPECT_EQ(after.sink->blocking_finish().cached_tokens, 0u);
  EXPECT_EQ(after.sink->tokens(), fresh(2, whole, 20));
}

TEST_F(EngineCache, ThoseThatFinishOnTheOldSetAndNewOnesShareNothingWithEachOther) {
  const auto running = blocking_submit_half(prompt_of(50), 3);
  blocking_swap(weights_of(2), OnUpdate::kFinish);
  const auto next = submit(*engine_, prompt_of(50), greedy(100));
  engine_->reset_prefix_cache(true);  // the old one computes all of it again
  engine_->resume();
  EXPECT_EQ(next.sink->blocking_finish().cached_tokens, 0u);
  running.sink->blocking_finish();
  EXPECT_EQ(next.sink->tokens(), fresh(2, prompt_of(50), 100));
  EXPECT_EQ(running.sink->tokens(), fresh(1, prompt_of(50), 100));
}

TEST_F(EngineCache, ResetsAndPausesThatClearItForgetAll) {
  found();
  engine_->reset_prefix_cache(false);
  EXPECT_EQ(found(), 0u);
  for (const PauseMode mode : {PauseMode::kAbort, PauseMode::kWait, PauseMode::kKeep}) {
    for (const bool clear : {false, true}) {
      blocking_pause(*engine_, mode, clear);
      engine_->resume();
      EXPECT_EQ(found(), clear ? 0u : 48u);
    }
  }
}

TEST_F(EngineCache, AResetInTheMiddleLeavesRunningTextsAsTheyAre) {
  for (const bool recompute_running : {false, true}) {
    const auto running = blocking_submit_half(prompt_of(50), 20);
    engine_->reset_prefix_cache(recompute_running);
    engine_->resume();
    running.sink->blocking_finish();
    EXPECT_EQ(running.sink->tokens(), fresh(1, prompt_of(50), 100));
  }
}

TEST_F(EngineCache, PromptLogprobsAreOfEveryTokenWhateverIsCached) {
  found();
  SamplingParams params = greedy(20);
  params.prompt_logprobs = 0;
  const auto scored = submit(*engine_, prompt_of(50), params);
  EXPECT_EQ(scored.sink->blocking_finish().cached_tokens, 0u);
  for (std::size_t i = 1; i < 50; ++i) EXPECT_LT(scored.sink->prompt()[i].chosen.logprob, 0.0f);
  EXPECT_EQ(found(), 48u);
}

TEST_F(EngineCache, ThoseThatShareWithOneThatIsCancelledGoOn) {
  blocking_pause(*engine_, PauseMode::kKeep);
  std::vector<Submitted> group;
  group.reserve(4);
  for (int i = 0; i < 4; ++i) group.push_back(submit(*engine_, prompt_of(50), greedy(100)));
  group[0].sink->at_token(2, [&] { engine_->cancel(group[0].id); });
  engine_->resume();
  EXPECT_EQ(group[0].sink->blocking_finish().reason, FinishReason::kAbort);
  for (int i = 1; i < 4; ++i) {
    group[i].sink->blocking_finish();
    EXPECT_EQ(group[i].sink->tokens(), fresh(1, prompt_of(50), 100));
  }
}

}  // namespace
}  // namespace weft
