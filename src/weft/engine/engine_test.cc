#include "weft/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <iterator>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "weft/engine/tiny_model.h"

namespace weft {
namespace {

using testing::blocking_pause;
using testing::greedy;
using testing::named;
using testing::RecordingSink;
using testing::submit;
using testing::Submitted;
using testing::tiny_config;
using testing::tiny_weights;

std::unique_ptr<Engine> make_engine(EngineOptions options = {.threads = 2},
                                    const ModelConfig& config = tiny_config(),
                                    std::uint64_t seed = 1) {
  auto weights = tiny_weights(config, DType::kBF16, seed);
  return Engine::create(config, options, std::move(weights), named("one")).value();
}

SwapReport blocking_swap(Engine& engine, std::shared_ptr<const WeightSet> weights,
                         std::string label) {
  std::promise<SwapReport> done;
  engine.swap_weights(std::move(weights), {.version = named(std::move(label))},
                      [&](SwapReport report) { done.set_value(std::move(report)); });
  return done.get_future().get();
}

TEST(Engine, EndsByLengthAndTellsEachTokenOnce) {
  const auto engine = make_engine();
  const auto sequence = submit(*engine, {1, 2, 3}, greedy(20));

  EXPECT_EQ(sequence.sink->blocking_finish().reason, FinishReason::kLength);
  EXPECT_EQ(sequence.sink->tokens().size(), 20u);
  EXPECT_EQ(sequence.sink->finish_count(), 1u);
  EXPECT_EQ(sequence.sink->events()[0].version->label, "one");
}

TEST(Engine, EndsByAnEndTokenAndByAStopToken) {
  auto config = tiny_config();
  const auto probe_engine = make_engine({.threads = 1}, config);
  const auto probe = submit(*probe_engine, {5}, greedy(4));
  probe.sink->blocking_finish();
  const std::uint32_t first = probe.sink->tokens().at(0);
  config.eos_token_ids = {first};
  const auto engine = make_engine({.threads = 1}, config);

  SamplingParams params = greedy(4);
  params.stop_token_ids = {first};
  const auto stopped = submit(*engine, {5}, params);
  EXPECT_EQ(stopped.sink->blocking_finish().stop_token, first);
  EXPECT_EQ(stopped.sink->tokens(), std::vector{first});

  params = greedy(4);
  params.ignore_eos = false;
  const auto ended = submit(*engine, {5}, params);
  EXPECT_EQ(ended.sink->blocking_finish().reason, FinishReason::kStop);
  EXPECT_EQ(ended.sink->tokens(), std::vector{first});
}

TEST(Engine, GivesNoTokenWhenNoneIsAskedForButScoresThePrompt) {
  const auto engine = make_engine();
  SamplingParams params = greedy(0);
  params.prompt_logprobs = 3;
  const auto sequence = submit(*engine, {4, 5, 6}, params);

  EXPECT_EQ(sequence.sink->blocking_finish().reason, FinishReason::kLength);
  EXPECT_TRUE(sequence.sink->tokens().empty());
  const auto prompt = sequence.sink->prompt();
  ASSERT_EQ(prompt.size(), 3u);
  EXPECT_EQ(prompt[0].chosen.token, 4u);
  EXPECT_EQ(prompt[0].chosen.rank, 0u);
  EXPECT_EQ(prompt[2].chosen.token, 6u);
  EXPECT_LT(prompt[2].chosen.logprob, 0.0f);
  EXPECT_EQ(prompt[2].top.size(), 3u);
}

TEST(Engine, RefusesWhatItCannotServe) {
  const auto engine = make_engine({.threads = 1, .max_model_len = 32});
  const auto refusal = [&](std::vector<std::uint32_t> prompt, SamplingParams params) {
    auto sink = std::make_shared<RecordingSink>();
    auto result = engine->submit({std::move(prompt), std::move(params), sink, ""});
    EXPECT_EQ(sink->finish_count(), 0u);
    return result.error().code();
  };
  EXPECT_EQ(refusal({}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({64}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(std::vector<std::uint32_t>(33, 1), {}), ErrorCode::kInvalidArgument);
  SamplingParams params;
  params.stop_token_ids = {64};
  EXPECT_EQ(refusal({1}, params), ErrorCode::kInvalidArgument);
  params = {};
  params.logit_bias = {{64, 1.0f}};
  EXPECT_EQ(refusal({1}, params), ErrorCode::kInvalidArgument);
  params = {};
  params.allowed_token_ids = {1, 4'000'000'000};
  EXPECT_EQ(refusal({1}, params), ErrorCode::kInvalidArgument);
}

TEST(Engine, IsOverloadedPastTheQueue) {
  const auto engine = make_engine({.threads = 1, .max_queued = 2});
  blocking_pause(*engine, PauseMode::kKeep);
  submit(*engine, {1}, greedy(1));
  submit(*engine, {1}, greedy(1));
  auto sink = std::make_shared<RecordingSink>();
  EXPECT_EQ(engine->submit({{1}, greedy(1), sink, ""}).error().code(), ErrorCode::kOverloaded);
}

TEST(Engine, RefusesACacheThatCannotHoldOneSequence) {
  const auto config = tiny_config();
  const auto weights = tiny_weights(config, DType::kF32, 1);
  const auto engine = Engine::create(
      config, {.threads = 1, .max_model_len = 256, .kv_cache_bytes = 4096}, weights, named("one"));
  EXPECT_EQ(engine.error().code(), ErrorCode::kOverloaded);
}

TEST(Engine, CancelEndsASequenceAndFreesItsPages) {
  const auto engine = make_engine({.threads = 1});
  const auto sequence = submit(*engine, {1}, greedy(250));
  sequence.sink->blocking_tokens(1);
  engine->cancel(sequence.id);
  engine->cancel(sequence.id);
  engine->cancel(12345);

  EXPECT_EQ(sequence.sink->blocking_finish().reason, FinishReason::kAbort);
  blocking_pause(*engine, PauseMode::kKeep);
  blocking_pause(*engine, PauseMode::kKeep);
  EXPECT_EQ(engine->stats().running, 0u);
  EXPECT_EQ(engine->stats().kv_cache_usage, 0.0);
  EXPECT_EQ(sequence.sink->finish_count(), 1u);
}

// Pages for one sequence of full length; two in a step, 8 tokens of prompts.
class EngineCancel : public ::testing::Test {
 protected:
  // Ends the victim when the neighbour gets its token `at`, and waits until both have ended.
  void cancel_at(std::size_t at, std::vector<std::uint32_t> prompt, std::uint64_t tokens) {
    auto neighbour = std::make_shared<RecordingSink>();
    SequenceId victim = 0;
    neighbour->at_token(at, [&] { engine_->cancel(victim); });
    engine_->submit({{1, 2}, greedy(230), neighbour, ""}).value();
    const auto ended = submit(*engine_, std::move(prompt), greedy(tokens));
    victim = ended.id;
    engine_->resume();
    EXPECT_EQ(ended.sink->blocking_finish().reason, FinishReason::kAbort);
    EXPECT_EQ(neighbour->blocking_finish().reason, FinishReason::kLength);
    EXPECT_EQ(ended.sink->finish_count(), 1u);
    tokens_of_victim_ = ended.sink->tokens().size();
    blocking_pause(*engine_, PauseMode::kKeep);
    blocking_pause(*engine_, PauseMode::kKeep);
    EXPECT_EQ(engine_->stats().running + engine_->stats().waiting, 0u);
    EXPECT_EQ(engine_->stats().kv_cache_usage, 0.0);
  }

  std::unique_ptr<Engine> engine_ =
      make_engine({.threads = 1,
                   .max_num_seqs = 2,
                   .max_num_batched_tokens = 8,
                   .kv_cache_bytes = 16 * 16 * 2 * 2 * 2 * 16 * sizeof(float)});
  std::size_t tokens_of_victim_ = 0;

  void SetUp() override { blocking_pause(*engine_, PauseMode::kKeep); }
};

TEST_F(EngineCancel, BeforeItBegins) {
  const auto victim = submit(*engine_, {1, 2}, greedy(5));
  engine_->cancel(victim.id);
  EXPECT_EQ(victim.sink->blocking_finish().reason, FinishReason::kAbort);
}

TEST_F(EngineCancel, InTheMiddleOfItsPrompt) {
  cancel_at(4, std::vector<std::uint32_t>(200, 7), 5);
  EXPECT_EQ(tokens_of_victim_, 0u);
}

TEST_F(EngineCancel, BetweenTwoTokens) {
  cancel_at(20, {7}, 200);
  EXPECT_GT(tokens_of_victim_, 0u);
}

TEST_F(EngineCancel, AfterItHasGivenUpItsPages) {
  cancel_at(200, std::vector<std::uint32_t>(20, 7), 230);
  EXPECT_GT(tokens_of_victim_, 0u);
  EXPECT_GT(engine_->stats().preemptions, 0u);
}

TEST_F(EngineCancel, WhileAPauseWaitsForIt) {
  const auto victim = submit(*engine_, {1}, greedy(250));
  engine_->resume();
  victim.sink->blocking_tokens(1);
  std::promise<void> paused;
  engine_->pause(PauseMode::kWait, false, [&] { paused.set_value(); });
  engine_->cancel(victim.id);
  paused.get_future().get();
  EXPECT_EQ(victim.sink->finish_count(), 1u);
}

TEST(Engine, DestructionAbortsWhatRuns) {
  auto engine = make_engine();
  const auto running = submit(*engine, {1}, greedy(250));
  const auto waiting = submit(*engine, {1}, greedy(250));
  engine.reset();
  EXPECT_EQ(running.sink->finish_count(), 1u);
  EXPECT_EQ(waiting.sink->finish_count(), 1u);
}

TEST(Engine, PauseAbortEndsAllBeforeItIsDone) {
  const auto engine = make_engine();
  const auto sequence = submit(*engine, {1}, greedy(250));
  blocking_pause(*engine, PauseMode::kAbort);
  EXPECT_EQ(sequence.sink->finish_count(), 1u);
  EXPECT_TRUE(engine->is_paused());

  const auto held = submit(*engine, {1}, greedy(2));
  EXPECT_EQ(held.sink->finish_count(), 0u);
  engine->resume();
  EXPECT_EQ(held.sink->blocking_finish().reason, FinishReason::kLength);
  EXPECT_FALSE(engine->is_paused());
}

TEST(Engine, PauseWaitLetsRunningOnesEndAndHoldsNewOnes) {
  const auto engine = make_engine();
  const auto running = submit(*engine, {1}, greedy(60));
  running.sink->blocking_tokens(1);
  std::promise<void> done;
  engine->pause(PauseMode::kWait, false, [&] { done.set_value(); });
  const auto held = submit(*engine, {1}, greedy(2));
  done.get_future().get();

  EXPECT_EQ(running.sink->tokens().size(), 60u);
  EXPECT_EQ(held.sink->tokens().size(), 0u);
  engine->resume();
  held.sink->blocking_finish();
}

TEST(Engine, PauseKeepFreezesAndGoesOnWithTheSameText) {
  const auto engine = make_engine();
  const auto whole = submit(*engine, {7, 8}, greedy(100));
  whole.sink->blocking_finish();
  for (const bool clear_cache : {false, true}) {
    const auto sequence = submit(*engine, {7, 8}, greedy(100));
    sequence.sink->blocking_tokens(5);
    blocking_pause(*engine, PauseMode::kKeep, clear_cache);
    const std::size_t frozen = sequence.sink->tokens().size();
    blocking_pause(*engine, PauseMode::kKeep, clear_cache);
    EXPECT_EQ(sequence.sink->tokens().size(), frozen);
    engine->resume();
    engine->resume();

    sequence.sink->blocking_finish();
    EXPECT_EQ(sequence.sink->tokens(), whole.sink->tokens());
  }
}

TEST(Engine, SwapsWeightsBetweenTwoTokens) {
  const auto config = tiny_config();
  const auto old_weights = tiny_weights(config, DType::kBF16, 1);
  const auto new_weights = tiny_weights(config, DType::kBF16, 2);
  const auto engine = Engine::create(config, {.threads = 2}, old_weights, named("one")).value();
  const auto sequence = submit(*engine, {1, 2}, greedy(200));
  sequence.sink->blocking_tokens(3);

  const SwapReport report = blocking_swap(*engine, new_weights, "two");

  EXPECT_EQ(report.retired, old_weights);
  EXPECT_EQ(engine->version()->label, "two");
  sequence.sink->blocking_finish();
  const auto events = sequence.sink->events();
  EXPECT_EQ(events.front().version->label, "one");
  EXPECT_TRUE(std::ranges::is_sorted(
      events, {}, [](const TokenEvent& event) { return event.version->label == "two"; }));

  // From then on all is as in an engine that began with them.
  const auto after = submit(*engine, {9}, greedy(30));
  const auto fresh_engine = make_engine({.threads = 2}, config, 2);
  const auto fresh = submit(*fresh_engine, {9}, greedy(30));
  after.sink->blocking_finish();
  fresh.sink->blocking_finish();
  EXPECT_EQ(after.sink->tokens(), fresh.sink->tokens());
  EXPECT_EQ(after.sink->events().at(0).version->label, "two");
}

TEST(Engine, RenamesTheVersionAlone) {
  const auto engine = make_engine();
  engine->rename_version(named("other"));
  const auto sequence = submit(*engine, {1}, greedy(1));
  sequence.sink->blocking_finish();
  EXPECT_EQ(sequence.sink->events().at(0).version->label, "other");
}

TEST(Engine, LogitsThatAreNanEndThatSequenceAlone) {
  const auto config = tiny_config();
  auto weights = tiny_weights(config, DType::kF32, 1);
  const auto index = weights->layout().try_find("model.embed_tokens.weight").value();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(weights->tensor(index).data() + 9 * config.hidden_size * sizeof(float), &nan,
              sizeof(nan));
  const auto engine = Engine::create(config, {.threads = 2}, weights, named("one")).value();
  blocking_pause(*engine, PauseMode::kKeep);
  SamplingParams params = greedy(10);
  params.logit_bias = {{9, -100.0f}};  // the neighbours stay away from the bad token
  const auto good = submit(*engine, {1, 2}, params);
  const auto bad = submit(*engine, {9, 2}, params);
  const auto also_good = submit(*engine, {3}, params);
  engine->resume();

  const FinishEvent failed = bad.sink->blocking_finish();
  EXPECT_EQ(failed.reason, FinishReason::kError);
  EXPECT_TRUE(failed.error.has_value());
  EXPECT_EQ(good.sink->blocking_finish().reason, FinishReason::kLength);
  EXPECT_EQ(also_good.sink->blocking_finish().reason, FinishReason::kLength);
}

TEST(Engine, ManyShortSequencesAtOnceAllEnd) {
  const auto engine = make_engine();
  std::vector<Submitted> all;
  for (std::uint32_t i = 0; i < 1024; ++i) {
    SamplingParams params = greedy(8);
    params.temperature = 1;
    all.push_back(submit(*engine, {i % 64, 1, 2}, params));
  }
  for (const Submitted& sequence : all) {
    sequence.sink->blocking_finish();
    EXPECT_EQ(sequence.sink->tokens().size(), 8u);
  }
}

TEST(Engine, LosesNoSequenceUnderCallsFromSeveralThreads) {
  const auto config = tiny_config();
  const auto weights = tiny_weights(config, DType::kBF16, 2);
  // Pages for two of the longest, so that there are preemptions too.
  const auto engine = make_engine({.threads = 2,
                                   .max_model_len = 64,
                                   .max_num_seqs = 8,
                                   .max_num_batched_tokens = 40,
                                   .kv_cache_bytes = 8 * 2 * 2 * 2 * 16 * 16 * sizeof(float)},
                                  config);
  std::vector<std::future<std::vector<Submitted>>> callers;
  for (unsigned caller = 0; caller < 3; ++caller) {
    callers.push_back(std::async(std::launch::async, [&, caller] {
      std::mt19937_64 random(caller);
      std::vector<Submitted> mine;
      for (int call = 0; call < 120; ++call) {
        switch (random() % 12) {
          case 0:
            engine->pause(static_cast<PauseMode>(random() % 3), random() % 2 == 0, [] {});
            break;
          case 1:
            engine->resume();
            break;
          case 2:
            engine->swap_weights(weights, {named("two")}, [](SwapReport) {});
            break;
          case 3:
            engine->cancel(random() % 300);
            break;
          default:
            SamplingParams params = greedy(random() % 30);
            if (random() % 4 == 0) params.prompt_logprobs = 1;
            mine.push_back(
                submit(*engine, std::vector<std::uint32_t>(1 + random() % 40, 3), params));
        }
      }
      return mine;
    }));
  }
  std::vector<Submitted> all;
  for (auto& caller : callers) std::ranges::move(caller.get(), std::back_inserter(all));
  engine->resume();

  for (const Submitted& sequence : all) sequence.sink->blocking_finish();
  blocking_pause(*engine, PauseMode::kWait);
  for (const Submitted& sequence : all) EXPECT_EQ(sequence.sink->finish_count(), 1u);
  engine->resume();
  blocking_pause(*engine, PauseMode::kKeep);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0u);
  EXPECT_EQ(stats.kv_cache_usage, 0.0);
  EXPECT_EQ(
      stats.finished_stop + stats.finished_length + stats.finished_abort + stats.finished_error,
      all.size());
}

}  // namespace
}  // namespace weft
