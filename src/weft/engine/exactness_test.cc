// What a result depends on: in the exact mode on the request and the weights alone, bit for bit; in
// the fast mode within a bound.

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "weft/engine/engine.h"
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

std::unique_ptr<Engine> make_engine(EngineOptions options,
                                    const ModelConfig& config = tiny_config(),
                                    DType dtype = DType::kBF16) {
  return Engine::create(config, options, tiny_weights(config, dtype, 1), named("one")).value();
}

struct Outcome {
  std::vector<std::uint32_t> tokens;
  std::vector<float> logprobs;

  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const RecordingSink& sink) {
  Outcome outcome;
  for (const TokenEvent& event : sink.events()) {
    outcome.tokens.push_back(event.token);
    outcome.logprobs.push_back(event.scored.chosen.logprob);
  }
  return outcome;
}

struct Job {
  std::vector<std::uint32_t> prompt;
  SamplingParams params;
};

// Every second prompt goes on from one of three beginnings, so that there is something to share.
std::vector<Job> random_jobs(std::mt19937_64& random, std::size_t count) {
  const auto uniform = [&](std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
  };
  std::vector<std::uint32_t> stems[3];
  for (auto& stem : stems) {
    stem.resize(70);
    for (std::uint32_t& token : stem) token = uniform(0, 63);
  }
  std::vector<Job> jobs(count);
  for (Job& job : jobs) {
    job.prompt = stems[uniform(0, 2)];
    job.prompt.resize(uniform(1, 70));
    if (uniform(0, 1) == 0) {
      for (std::uint32_t& token : job.prompt) token = uniform(0, 63);
    }
    job.params.max_tokens = uniform(1, 40);
    job.params.seed = random();
    job.params.ignore_eos = true;
    job.params.logprobs = 0;
    if (uniform(0, 2) == 0) job.params.temperature = 0;
    if (uniform(0, 2) == 0) job.params.top_p = 0.8;
    if (uniform(0, 2) == 0) job.params.repetition_penalty = 1.2;
  }
  return jobs;
}

// Prompt and output as one prompt: what the engine says of each of its tokens.
std::vector<ScoredToken> rescored(Engine& engine, const Job& job, const Outcome& outcome,
                                  std::uint32_t top = 0) {
  std::vector<std::uint32_t> all = job.prompt;
  all.insert(all.end(), outcome.tokens.begin(), outcome.tokens.end());
  SamplingParams params = greedy(0);
  params.prompt_logprobs = top;
  const auto sequence = submit(engine, all, params);
  EXPECT_EQ(sequence.sink->blocking_finish().cached_tokens, 0u);
  auto prompt = sequence.sink->prompt();
  prompt.erase(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(job.prompt.size()));
  return prompt;
}

void expect_rescored_equal(Engine& engine, const Job& job, const Outcome& outcome) {
  const auto scored = rescored(engine, job, outcome);
  ASSERT_EQ(scored.size(), outcome.logprobs.size());
  for (std::size_t i = 0; i < scored.size(); ++i) {
    ASSERT_EQ(scored[i].chosen.logprob, outcome.logprobs[i]) << "token " << i;
  }
}

std::vector<Outcome> each_alone(const std::vector<Job>& jobs) {
  const auto engine = make_engine({.threads = 1, .prefix_caching = false, .deterministic = true});
  std::vector<Outcome> alone;
  for (const Job& job : jobs) {
    const auto sequence = submit(*engine, job.prompt, job.params);
    sequence.sink->blocking_finish();
    alone.push_back(outcome_of(*sequence.sink));
    expect_rescored_equal(*engine, job, alone.back());
  }
  return alone;
}

TEST(Deterministic, NothingButTheRequestDecidesAResult) {
  std::mt19937_64 random(5);
  const std::vector<Job> jobs = random_jobs(random, 24);
  const std::vector<Outcome> alone = each_alone(jobs);
  const std::uint64_t page_bytes = 16 * 2 * 2 * 2 * 16 * sizeof(float);
  for (unsigned round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    // Chunks of odd sizes, one to three threads, with and without a prefix cache, and, every second
    // time, pages for two sequences only.
    EngineOptions options{.threads = 1u + round % 3,
                          .max_model_len = 128,
                          .max_num_seqs = 3u + random() % 20,
                          .max_num_batched_tokens = 7u + random() % 90,
                          .page_tokens = round % 2 == 0 ? 16u : 32u,
                          .prefix_caching = round % 4 < 3,
                          .deterministic = true};
    if (round % 2 == 0) options.kv_cache_bytes = 14 * page_bytes;
    const auto engine = make_engine(options);
    for (int again = 0; again < 2; ++again) {  // the second time with what the first has left
      std::vector<Submitted> submitted;
      submitted.reserve(jobs.size());
      for (const Job& job : jobs) submitted.push_back(submit(*engine, job.prompt, job.params));
      engine->cancel(submit(*engine, {1, 2, 3}, greedy(50)).id);
      blocking_pause(*engine, PauseMode::kKeep, round % 3 == 0);
      engine->resume();
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        submitted[i].sink->blocking_finish();
        ASSERT_EQ(outcome_of(*submitted[i].sink), alone[i]) << "job " << i;
      }
    }
    EXPECT_EQ(engine->stats().prefix_cache_hits > 0, options.prefix_caching);
    if (round % 2 == 0) {
      EXPECT_GT(engine->stats().preemptions, 0u);
    }
  }
}

TEST(Deterministic, RescoringEqualsGenerationInEveryDtypeAndWithAWindow) {
  auto config = tiny_config();
  config.sliding_window = 20;
  config.sliding_layers = {true, false};
  std::mt19937_64 random(6);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const auto engine = make_engine({.threads = 2, .deterministic = true}, config, dtype);
    for (const Job& job : random_jobs(random, 6)) {
      const auto sequence = submit(*engine, job.prompt, job.params);
      sequence.sink->blocking_finish();
      expect_rescored_equal(*engine, job, outcome_of(*sequence.sink));
    }
  }
}

// A group of equal prompts, as a trainer asks for them: one computes the prompt, and all results
// are as if each had.
TEST(Deterministic, AGroupWithOnePromptIsAsEachAlone) {
  std::vector<Job> jobs(16);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    for (std::uint32_t token = 0; token < 60; ++token) jobs[i].prompt.push_back(token * 7 % 64);
    jobs[i].params = greedy(30);
    jobs[i].params.temperature = 1;
    jobs[i].params.seed = i;
    jobs[i].params.logprobs = 0;
  }
  const std::vector<Outcome> alone = each_alone(jobs);
  const auto engine =
      make_engine({.threads = 2, .max_num_batched_tokens = 37, .deterministic = true});
  blocking_pause(*engine, PauseMode::kKeep);
  std::vector<Submitted> group;
  group.reserve(jobs.size());
  for (const Job& job : jobs) group.push_back(submit(*engine, job.prompt, job.params));
  engine->resume();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(group[i].sink->blocking_finish().cached_tokens, i == 0 ? 0u : 48u);
    EXPECT_EQ(outcome_of(*group[i].sink), alone[i]) << i;
  }
  EXPECT_EQ(engine->stats().prefix_cache_hits, 15u * 48);
}

// Logits are within 1e-4 of the largest of those that transformers computes, in either mode
// (engine_golden_test.cc), so two runs' differ by twice that, and so does the logarithm of the sum
// of their exponentials: log-probabilities differ by four times that at most.
TEST(Fast, RescoringIsWithinFourTimesTheBoundOfLogitsOfGeneration) {
  std::mt19937_64 random(7);
  const std::vector<Job> jobs = random_jobs(random, 24);
  const auto engine = make_engine({.threads = 2, .max_num_batched_tokens = 50});
  std::vector<Submitted> submitted;
  submitted.reserve(jobs.size());
  for (const Job& job : jobs) submitted.push_back(submit(*engine, job.prompt, job.params));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    submitted[i].sink->blocking_finish();
    const Outcome outcome = outcome_of(*submitted[i].sink);
    const auto scored = rescored(*engine, jobs[i], outcome, 64);  // the whole vocabulary
    for (std::size_t token = 0; token < scored.size(); ++token) {
      // The largest logit is at least half of what lies between the largest and the least.
      const auto& all = scored[token].top;
      const float largest = (all.front().logprob - all.back().logprob) / 2;
      ASSERT_NEAR(scored[token].chosen.logprob, outcome.logprobs[token], 4e-4f * largest)
          << "job " << i << ", token " << token;
    }
  }
  EXPECT_GT(engine->stats().prefix_cache_hits, 0u);
}

}  // namespace
}  // namespace weft
