// What sequences do when the weights change under them, value by value of on_update. The exact mode
// lets tokens and log-probabilities be compared bit for bit with engines that have one set only.

#include <atomic>
#include <cstring>
#include <future>
#include <random>

#include <gtest/gtest.h>

#include "weft/engine/engine.h"
#include "weft/engine/tiny_model.h"

namespace weft {
namespace {

using testing::RecordingSink;
using testing::tiny_config;
using testing::tiny_weights;

VersionName named(std::string label) {
  return {.id = "blake3:" + label, .label = label};
}

std::shared_ptr<WeightSet> weights_of(std::uint64_t seed) {
  return tiny_weights(tiny_config(), DType::kBF16, seed);
}

std::unique_ptr<Engine> make_engine(std::shared_ptr<const WeightSet> weights,
                                    EngineOptions options = {}) {
  options.threads = 2;
  options.deterministic = true;
  return Engine::create(tiny_config(), options, std::move(weights), named("one")).value();
}

using Sink = std::shared_ptr<RecordingSink>;

struct Asked {
  std::vector<std::uint32_t> prompt;
  std::uint64_t max_tokens = 200;
  std::optional<OnUpdate> on_update{};
  std::size_t pause_at = 0;  // tokens, when the engine is paused; 0: never
};
struct Submitted {
  SequenceId id;
  Sink sink;
};
Submitted submit_with_id(Engine& engine, Asked asked) {
  SequenceRequest request;
  request.prompt = std::move(asked.prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = asked.max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 0;
  request.on_update = asked.on_update;
  auto sink = std::make_shared<RecordingSink>();
  if (asked.pause_at > 0) {
    sink->at_token(asked.pause_at, [&engine] { engine.pause(PauseMode::kKeep, false, {}); });
  }
  request.sink = sink;
  return {engine.submit(std::move(request)).value(), sink};
}
Sink submit(Engine& engine, Asked asked) {
  return submit_with_id(engine, std::move(asked)).sink;
}
// The engine stands paused in the middle of it, after `tokens` tokens.
Sink blocking_submit_half(Engine& engine, Asked asked, std::size_t tokens) {
  asked.pause_at = tokens;
  auto sink = submit(engine, std::move(asked));
  sink->blocking_tokens(tokens);
  return sink;
}

struct Scored {
  std::uint32_t token = 0;
  float logprob = 0;

  bool operator==(const Scored&) const = default;
};

// What a sequence got from the version called `label`; it must be in one piece.
std::vector<Scored> part_of(const RecordingSink& sink, std::string_view label) {
  std::vector<Scored> part;
  std::size_t first = 0, at = 0;
  for (const TokenEvent& event : sink.events()) {
    if (event.version->label == label) {
      if (part.empty()) first = at;
      EXPECT_EQ(at, first + part.size()) << "the span of " << label << " is interrupted";
      part.push_back({event.token, event.scored.chosen.logprob});
    }
    ++at;
  }
  return part;
}

// What an engine that never had other weights makes of `prompt`.
std::vector<Scored> alone(std::shared_ptr<const WeightSet> weights,
                          std::vector<std::uint32_t> prompt, std::uint64_t tokens) {
  if (tokens == 0) return {};
  const auto engine = make_engine(std::move(weights));
  const auto sink = submit(*engine, {std::move(prompt), tokens});
  sink->blocking_finish();
  return part_of(*sink, "one");
}

// `prompt` and the first `tokens` tokens that `sink` got.
std::vector<std::uint32_t> whole_text(std::vector<std::uint32_t> prompt, const RecordingSink& sink,
                                      std::size_t tokens) {
  const auto made = sink.tokens();
  prompt.insert(prompt.end(), made.begin(), made.begin() + static_cast<std::ptrdiff_t>(tokens));
  return prompt;
}

// A change of weights that is over, and whether the set before is free.
struct Change {
  std::promise<SwapReport> done;
  // The engine may say so when this is gone.
  std::shared_ptr<std::promise<void>> released = std::make_shared<std::promise<void>>();
  std::future<void> free = released->get_future();

  WeightChange change(std::string label, OnUpdate on_update) {
    return {named(std::move(label)), on_update, [said = released] { said->set_value(); }};
  }
  bool is_released() const {
    return free.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void blocking_swap(Engine& engine, std::shared_ptr<const WeightSet> weights, std::string label,
                     OnUpdate on_update) {
    engine.swap_weights(std::move(weights), change(std::move(label), on_update),
                        [this](SwapReport report) { done.set_value(std::move(report)); });
    done.get_future().get();
  }
  Result<SwapReport> blocking_patch(Engine& engine, std::function<Result<void>()> patch,
                                    std::string label, OnUpdate on_update) {
    std::promise<Result<SwapReport>> patched;
    engine.patch_weights(std::move(patch), change(std::move(label), on_update),
                         [&](Result<SwapReport> report) { patched.set_value(std::move(report)); });
    return patched.get_future().get();
  }
};

// Commands that were posted before have been carried out.
void blocking_settle(Engine& engine) {
  std::promise<void> done;
  engine.pause(PauseMode::kKeep, false, [&] { done.set_value(); });
  done.get_future().get();
}

TEST(Update, TheSetBeforeIsFreeWhenTheChangeIsMade) {
  const auto engine = make_engine(weights_of(1), {});
  for (unsigned seed = 2; seed < 12; ++seed) {
    Change change;
    change.blocking_swap(*engine, weights_of(seed), "next", OnUpdate::kContinue);
    EXPECT_TRUE(change.is_released()) << seed;
  }
}

TEST(OnUpdate, ContinueGoesOnWithTheNewSetAndTheOldOneIsFreeAtOnce) {
  const auto engine = make_engine(weights_of(1));
  const auto sink = blocking_submit_half(*engine, {{1, 2}}, 3);
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kContinue);
  change.free.wait();
  engine->resume();

  sink->blocking_finish();
  EXPECT_EQ(part_of(*sink, "one"), alone(weights_of(1), {1, 2}, 3));
  EXPECT_EQ(part_of(*sink, "two").size(), 197u);
}

TEST(OnUpdate, RecomputeMakesEveryTokenAfterItWhatTheNewSetAloneWouldMake) {
  const auto engine = make_engine(weights_of(1));
  const auto sink = blocking_submit_half(*engine, {{1, 2, 3, 4, 5}}, 20);
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kRecompute);
  change.free.wait();
  engine->resume();
  sink->blocking_finish();

  EXPECT_EQ(part_of(*sink, "one"), alone(weights_of(1), {1, 2, 3, 4, 5}, 20));
  EXPECT_EQ(part_of(*sink, "two"),
            alone(weights_of(2), whole_text({1, 2, 3, 4, 5}, *sink, 20), 180));
}

TEST(OnUpdate, FinishKeepsRunningSequencesOnTheOldSetWhileNewOnesUseTheNew) {
  // Also with pages for little more than one sequence, so that the old ones are preempted.
  const std::uint64_t page_bytes = 16 * 2 * 2 * 2 * 16 * sizeof(float);
  for (const std::uint64_t cache_bytes : {std::uint64_t{0}, 20 * page_bytes}) {
    SCOPED_TRACE(cache_bytes);
    const auto engine = make_engine(weights_of(1), {.kv_cache_bytes = cache_bytes});
    blocking_settle(*engine);
    std::vector<Sink> old, fresh;
    for (std::uint32_t i = 0; i < 3; ++i) {
      old.push_back(submit(*engine, {{i, 9}, 150, {}, i == 2 ? 2u : 0u}));
    }
    engine->resume();
    for (const Sink& sink : old) sink->blocking_tokens(2);
    Change change;
    change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kFinish);
    for (std::uint32_t i = 0; i < 3; ++i) fresh.push_back(submit(*engine, {{i, 9}, 100}));
    EXPECT_FALSE(change.is_released());
    engine->resume();

    for (std::uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(old[i]->blocking_finish().reason, FinishReason::kLength);
      EXPECT_EQ(part_of(*old[i], "one"), alone(weights_of(1), {i, 9}, 150));
      fresh[i]->blocking_finish();
      EXPECT_EQ(part_of(*fresh[i], "two"), alone(weights_of(2), {i, 9}, 100));
    }
    change.free.wait();
    if (cache_bytes != 0) {
      EXPECT_GT(engine->stats().preemptions, 0u);
    }
  }
}

TEST(OnUpdate, FinishFreesTheOldSetWhenItsLastSequenceHasEndedHoweverItEnds) {
  const auto engine = make_engine(weights_of(1));
  const auto [id, sink] = submit_with_id(*engine, {{1}, 200, {}, 1});
  sink->blocking_tokens(1);
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kFinish);
  blocking_settle(*engine);
  EXPECT_FALSE(change.is_released());
  EXPECT_EQ(engine->stats().on_retired, 1u);
  EXPECT_EQ(engine->stats().retired->label, "one");

  engine->cancel(id);
  change.free.wait();
  blocking_settle(*engine);
  blocking_settle(*engine);
  EXPECT_EQ(engine->stats().on_retired, 0u);
  EXPECT_EQ(engine->stats().retired, nullptr);
}

TEST(OnUpdate, FinishLeavesWhatHasNotBegunToTheNewSet) {
  const auto engine = make_engine(weights_of(1));
  blocking_settle(*engine);
  const auto waiting = submit(*engine, {{1}, 5});
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kFinish);
  change.free.wait();
  engine->resume();

  waiting->blocking_finish();
  EXPECT_EQ(part_of(*waiting, "two"), alone(weights_of(2), {1}, 5));
}

TEST(OnUpdate, AbortEndsRunningSequencesAndNoOthers) {
  const auto engine = make_engine(weights_of(1));
  const auto running = blocking_submit_half(*engine, {{1}}, 1);
  const auto waiting = submit(*engine, {{1}, 5});
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kAbort);
  EXPECT_EQ(running->blocking_finish().reason, FinishReason::kAbort);
  change.free.wait();
  engine->resume();

  EXPECT_EQ(waiting->blocking_finish().reason, FinishReason::kLength);
  EXPECT_EQ(part_of(*waiting, "two").size(), 5u);
}

TEST(OnUpdate, ARequestsOwnWordCounts) {
  const auto engine = make_engine(weights_of(1));
  blocking_settle(*engine);
  const auto continues = submit(*engine, {{1, 2}});
  const auto finishes = submit(*engine, {{1, 2}, 200, OnUpdate::kFinish});
  const auto aborts = submit(*engine, {{1, 2}, 200, OnUpdate::kAbort});
  const auto recomputes = submit(*engine, {{1, 2}, 200, OnUpdate::kRecompute, 5});
  engine->resume();
  recomputes->blocking_tokens(5);
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kContinue);
  engine->resume();

  EXPECT_EQ(aborts->blocking_finish().reason, FinishReason::kAbort);
  finishes->blocking_finish();
  EXPECT_EQ(part_of(*finishes, "one"), alone(weights_of(1), {1, 2}, 200));
  continues->blocking_finish();
  EXPECT_EQ(part_of(*continues, "two").size(), 195u);
  recomputes->blocking_finish();
  EXPECT_EQ(part_of(*recomputes, "two"),
            alone(weights_of(2), whole_text({1, 2}, *recomputes, 5), 195));
  change.free.wait();
}

TEST(OnUpdate, EvictedSequencesGoOnWithTheServingSetAndFreeTheOldOne) {
  const auto engine = make_engine(weights_of(1));
  const auto sink = blocking_submit_half(*engine, {{1, 2}}, 3);
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kFinish);
  EXPECT_FALSE(change.is_released());
  engine->evict_retired();
  change.free.wait();
  engine->resume();
  sink->blocking_finish();

  EXPECT_EQ(part_of(*sink, "two"), alone(weights_of(2), whole_text({1, 2}, *sink, 3), 197));
}

TEST(OnUpdate, ASetOnWhichSequencesStillEndMayServeAgain) {
  const auto first = weights_of(1);
  const auto engine = make_engine(first);
  const auto sink = blocking_submit_half(*engine, {{1, 2}}, 3);
  Change away, back;
  away.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kFinish);
  EXPECT_FALSE(away.is_released());
  back.blocking_swap(*engine, first, "one again", OnUpdate::kAbort);
  away.free.wait();
  back.free.wait();
  engine->resume();

  EXPECT_EQ(sink->blocking_finish().reason, FinishReason::kLength);
  auto whole = part_of(*sink, "one");
  for (const Scored& scored : part_of(*sink, "one again")) whole.push_back(scored);
  EXPECT_EQ(whole, alone(first, {1, 2}, 200));
}

TEST(OnUpdate, APromptScoredInPartsIsScoredAgainByTheNewSetAfterARecompute) {
  // A step takes 8 tokens, so the swap that the first sequence asks for meets the prompt half way.
  const auto engine = make_engine(weights_of(1), {.max_num_batched_tokens = 8});
  const auto score = [](Engine& on, std::uint64_t max_tokens) {
    SequenceRequest request;
    for (std::uint32_t i = 0; i < 40; ++i) request.prompt.push_back(i);
    request.sampling.max_tokens = max_tokens;
    request.sampling.prompt_logprobs = 0;
    auto sink = std::make_shared<RecordingSink>();
    request.sink = sink;
    EXPECT_TRUE(on.submit(std::move(request)));
    return sink;
  };
  blocking_settle(*engine);
  const auto other = submit(*engine, {{1}, 3, {}, 2});
  const auto scored = score(*engine, 0);
  engine->resume();
  other->blocking_tokens(2);
  Change change;
  change.blocking_swap(*engine, weights_of(2), "two", OnUpdate::kRecompute);
  engine->resume();
  scored->blocking_finish();

  const auto fresh_engine = make_engine(weights_of(2));
  const auto fresh = score(*fresh_engine, 0);
  fresh->blocking_finish();
  for (std::size_t i = 1; i < 40; ++i) {
    EXPECT_EQ(scored->prompt()[i].chosen.logprob, fresh->prompt()[i].chosen.logprob) << i;
  }
}

// ---- Patches ----

Result<void> copy_into(WeightSet& to, const WeightSet& from) {
  for (std::size_t i = 0; i < to.layout().tensors().size(); ++i) {
    std::memcpy(to.tensor(i).data(), from.tensor(i).data(), to.tensor(i).size());
  }
  return {};
}

TEST(Patch, ChangesTheServingSetBetweenTwoTokens) {
  for (const OnUpdate on_update : {OnUpdate::kContinue, OnUpdate::kRecompute, OnUpdate::kAbort}) {
    const auto served = weights_of(1);
    const auto engine = make_engine(served);
    const auto sink = blocking_submit_half(*engine, {{1, 2}}, 3);
    Change change;
    ASSERT_TRUE(change.blocking_patch(
        *engine, [&] { return copy_into(*served, *weights_of(2)); }, "two", on_update));
    change.free.wait();
    EXPECT_EQ(engine->version()->label, "two");
    engine->resume();
    sink->blocking_finish();
    EXPECT_EQ(part_of(*sink, "one"), alone(weights_of(1), {1, 2}, 3));
    EXPECT_EQ(part_of(*sink, "two").size(), on_update == OnUpdate::kAbort ? 0u : 197u);

    const auto after = submit(*engine, {{9}, 20});
    after->blocking_finish();
    EXPECT_EQ(part_of(*after, "two"), alone(weights_of(2), {9}, 20));
  }
}

TEST(Patch, ThatFailsLeavesNameAndSequencesAlone) {
  const auto engine = make_engine(weights_of(1));
  const auto sink = blocking_submit_half(*engine, {{1, 2}}, 3);
  Change change;
  const auto report = change.blocking_patch(
      *engine, [] { return Error(ErrorCode::kCorrupt, "the base differs"); }, "two",
      OnUpdate::kAbort);

  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(engine->version()->label, "one");
  engine->resume();
  sink->blocking_finish();
  EXPECT_EQ(part_of(*sink, "one"), alone(weights_of(1), {1, 2}, 200));
  EXPECT_FALSE(change.is_released());
}

TEST(Patch, CannotLetSequencesFinish) {
  const auto served = weights_of(1);
  const auto engine = make_engine(served);
  Change change;
  std::atomic<bool> patched = false;
  const auto report = change.blocking_patch(
      *engine,
      [&]() -> Result<void> {
        patched = true;
        return {};
      },
      "two", OnUpdate::kFinish);
  EXPECT_EQ(report.error().code(), ErrorCode::kUnsupported);
  EXPECT_FALSE(patched);

  const auto sink = blocking_submit_half(*engine, {{1}, 200, OnUpdate::kFinish}, 1);
  Change again;
  ASSERT_TRUE(again.blocking_patch(
      *engine, [&] { return copy_into(*served, *weights_of(2)); }, "two", OnUpdate::kContinue));
  EXPECT_EQ(sink->blocking_finish().reason, FinishReason::kAbort);
}

// ---- All at once ----

TEST(OnUpdate, EverySetIsFreedOnceAndEverySequenceEndsOnceUnderRandomCalls) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::vector<std::shared_ptr<WeightSet>> sets = {weights_of(1), weights_of(2)};
    std::atomic<int> released = 0, done = 0;
    int changes = 0;
    std::vector<Sink> sinks;
    std::unique_ptr<Engine> engine =
        make_engine(sets[0], {.max_model_len = 64,
                              .max_num_seqs = 8,
                              .max_num_batched_tokens = 40,
                              .kv_cache_bytes = 8 * 2 * 2 * 2 * 16 * 16 * sizeof(float)});
    const auto some = [&](std::uint64_t below) { return random() % below; };
    for (int call = 0; call < 150; ++call) {
      const auto on_update = static_cast<OnUpdate>(some(4));
      switch (some(10)) {
        case 0:
          ++changes;
          engine->swap_weights(sets[some(2)], {named("x"), on_update, [&] { ++released; }},
                               [&](const SwapReport&) { ++done; });
          break;
        case 1: {
          ++changes;
          const bool fails = some(2) == 0;
          engine->patch_weights(
              [fails]() -> Result<void> {
                if (fails) return Error(ErrorCode::kCorrupt, "no");
                return {};
              },
              {named("y"), on_update, [&] { ++released; }},
              [&](const Result<SwapReport>& report) {
                ++done;
                if (!report) ++released;  // which is not called then
              });
          break;
        }
        case 2:
          engine->evict_retired();
          break;
        case 3:
          engine->cancel(some(100));
          break;
        case 4:
          engine->pause(static_cast<PauseMode>(some(3)), some(2) == 0, [] {});
          break;
        case 5:
          engine->resume();
          break;
        default:
          std::optional<OnUpdate> own;
          if (some(3) == 0) own = static_cast<OnUpdate>(some(4));
          sinks.push_back(
              submit(*engine, {std::vector<std::uint32_t>(1 + some(40), 3), 1 + some(20), own}));
      }
    }
    if (seed % 2 == 0) {
      engine->resume();
      for (const Sink& sink : sinks) sink->blocking_finish();
    }
    engine.reset();
    for (const Sink& sink : sinks) EXPECT_EQ(sink->finish_count(), 1u);
    EXPECT_EQ(done, changes);
    EXPECT_EQ(released, changes);
  }
}

}  // namespace
}  // namespace weft
