#include "weft/trainer/policy.h"

#include <cmath>
#include <latch>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/engine/engine.h"
#include "weft/trainer/version_check.h"

namespace weft {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

ModelConfig tiny(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocab_size = 16;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = architecture != Architecture::kQwen2;
  config.qkv_bias = architecture == Architecture::kQwen2;
  config.qk_norm = architecture == Architecture::kQwen3;
  return config;
}

const std::vector<TokenSequence> kSequences{
    {{1, 2, 3}, {4, 5, 6, 7}}, {{9}, {8}}, {{3, 1, 4, 1, 5, 9, 2, 6}, {5, 3, 5}}};

constexpr std::size_t kScored = 8;  // tokens of the answers

std::unique_ptr<Policy> make_policy(const ModelConfig& config, std::uint64_t seed) {
  auto policy = Policy::create(config, seed, 1);
  WEFT_CHECK(policy.has_value());
  return std::move(*policy);
}

// Steps so large that norms and biases, too, are far from where they began.
void take_steps(Policy& policy, int count) {
  for (int i = 0; i < count; ++i) {
    policy.forward(kSequences);
    policy.backward({.logprobs = std::vector<double>(kScored, -1.0)});
    policy.step(0.05);
  }
}

std::shared_ptr<const WeightSet> weights_of(const Policy& policy, const ModelConfig& config) {
  auto layout = WeightLayout::make(expected_tensors(config));
  auto weights = WeightSet::blocking_allocate(std::make_shared<WeightLayout>(std::move(*layout)));
  WEFT_CHECK(weights.has_value());
  policy.write_weights(**weights);
  return *weights;
}

// Collects an answer.
class AnswerSink final : public SequenceSink {
 public:
  void on_prompt(std::vector<ScoredToken>, std::shared_ptr<const VersionName>) override {}
  void on_token(TokenEvent event) override {
    answer.tokens.push_back(event.token);
    answer.logprobs.push_back(event.scored.chosen.logprob);
  }
  void on_finish(FinishEvent) override { finished.count_down(); }

  Rollout answer;
  std::latch finished{1};
};

// Ten tokens sampled after `prompt` by the engine in the server's deterministic mode.
Rollout sample(const ModelConfig& config, std::shared_ptr<const WeightSet> weights,
               const std::vector<std::uint32_t>& prompt, const std::string& label) {
  EngineOptions options;
  options.threads = 1;
  options.deterministic = true;
  options.kv_cache_bytes = 1 << 20;
  auto engine = Engine::create(config, options, std::move(weights), {label, label});
  WEFT_CHECK(engine.has_value());
  auto sink = std::make_shared<AnswerSink>();
  SequenceRequest request;
  request.prompt = prompt;
  request.sampling.max_tokens = 10;
  request.sampling.seed = 5;
  request.sampling.logprobs = 0;
  request.sink = sink;
  WEFT_CHECK((*engine)->submit(std::move(request)).has_value());
  sink->finished.wait();
  sink->answer.versions = {{label, 0, sink->answer.tokens.size()}};
  return sink->answer;
}

class PolicyOfArchitecture : public testing::TestWithParam<Architecture> {};

TEST_P(PolicyOfArchitecture, ScoresAsTheEngineDoes) {
  const ModelConfig config = tiny(GetParam());
  const auto policy = make_policy(config, 1);
  take_steps(*policy, 3);

  const std::vector<std::uint32_t> prompt{3, 1, 4, 1, 5};
  const Rollout answer = sample(config, weights_of(*policy, config), prompt, "a");

  const TokenScores scores = policy->score(std::vector<TokenSequence>{{prompt, answer.tokens}});
  EXPECT_THAT(scores.logprobs, Pointwise(DoubleNear(1e-4), answer.logprobs));
}

INSTANTIATE_TEST_SUITE_P(All, PolicyOfArchitecture,
                         testing::Values(Architecture::kLlama, Architecture::kQwen2,
                                         Architecture::kQwen3));

TEST(Policy, ScoresDoNotDependOnWhatElseIsInTheBatch) {
  const auto policy = make_policy(tiny(Architecture::kLlama), 1);

  const auto together = policy->score(kSequences).logprobs;
  std::vector<double> alone;
  for (const TokenSequence& sequence : kSequences) {
    for (const double logprob : policy->score(std::span(&sequence, 1)).logprobs)
      alone.push_back(logprob);
  }
  EXPECT_THAT(together, Pointwise(DoubleNear(1e-5), alone));
}

TEST(Policy, ScoresPackedSequencesAsAlone) {
  const ModelConfig config = tiny(Architecture::kQwen3);
  const auto policy = make_policy(config, 1), packed = make_policy(config, 1);
  take_steps(*policy, 2);
  take_steps(*packed, 2);

  const TokenScores scores = policy->forward(kSequences);
  EXPECT_THAT(packed->forward(kSequences, 16).logprobs,
              Pointwise(DoubleNear(1e-5), scores.logprobs));
  for (Policy* const each : {policy.get(), packed.get()}) {
    each->backward({.logprobs = std::vector<double>(kScored, -1.0)});
  }
  EXPECT_NEAR(policy->step(0.01), packed->step(0.01), 1e-4);
  EXPECT_THAT(packed->score(kSequences).logprobs,
              Pointwise(DoubleNear(1e-2), policy->score(kSequences).logprobs));
}

TEST(Policy, ScoresAnswersOfOnePromptAsAlone) {
  const auto policy = make_policy(tiny(Architecture::kQwen3), 1);
  const auto alone = make_policy(tiny(Architecture::kQwen3), 1);
  take_steps(*policy, 2);
  take_steps(*alone, 2);
  const std::vector<TokenSequence> group{
      {{1, 2, 3}, {4, 5, 6}}, {{1, 2, 3}, {4, 7}}, {{1, 2, 3}, {4, 5, 6}}, {{1, 2, 3}, {8, 5}}};
  const std::vector<double> gradient{-1, -2, 0.5, 1, -1, 2, 0.25, -1, 3, -0.5};

  const TokenScores together = policy->forward(group);
  policy->backward({.logprobs = gradient, .entropies = gradient, .values = gradient});
  std::size_t first = 0;
  for (const TokenSequence& sequence : group) {
    const TokenScores scores = alone->forward(std::span(&sequence, 1));
    const std::size_t count = sequence.answer.size();
    for (std::size_t tok = 0; tok < count; ++tok) {
      EXPECT_NEAR(together.logprobs[first + tok], scores.logprobs[tok], 1e-5);
      EXPECT_NEAR(together.entropies[first + tok], scores.entropies[tok], 1e-5);
      EXPECT_NEAR(together.values[first + tok], scores.values[tok], 1e-5);
      EXPECT_EQ(together.greedy[first + tok], scores.greedy[tok]);
    }
    const std::vector<double> own(&gradient[first], &gradient[first] + count);
    alone->backward({.logprobs = own, .entropies = own, .values = own});
    first += count;
  }
  EXPECT_NEAR(policy->step(0.01) / alone->step(0.01), 1.0, 1e-5);

  const std::vector<double> judged = policy->judge(group);
  for (std::size_t i = 0; i < group.size(); ++i) {
    EXPECT_NEAR(judged[i], policy->judge(std::span(&group[i], 1))[0], 1e-5);
  }
}

TEST(Policy, HasEntropiesOfItsDistributions) {
  // As it begins, the distribution is almost flat.
  const auto policy = make_policy(tiny(Architecture::kLlama), 1);
  for (const double entropy : policy->score(kSequences).entropies) {
    EXPECT_NEAR(entropy, std::log(16), 0.1);
  }
}

TEST(Policy, LearnsValuesAndJudgementsWithItsScalarHead) {
  const auto policy = make_policy(tiny(Architecture::kLlama), 1);
  EXPECT_THAT(policy->score(kSequences).values, testing::Each(0.0));
  const std::vector<double> wanted_values{0, 1, 2, 3, 4, 5, 6, 7}, wanted{-1, 2, 5};
  for (int i = 0; i < 150; ++i) {
    const std::vector<double> values = policy->forward(kSequences).values;
    std::vector<double> errors;
    for (std::size_t tok = 0; tok < kScored; ++tok) {
      errors.push_back(values[tok] - wanted_values[tok]);
    }
    policy->backward({.values = errors});
    policy->step(0.02);
  }
  EXPECT_THAT(policy->score(kSequences).values, Pointwise(DoubleNear(0.5), wanted_values));

  const auto judge = make_policy(tiny(Architecture::kLlama), 1);
  for (int i = 0; i < 150; ++i) {
    std::vector<double> errors = judge->forward_judgement(kSequences);
    for (std::size_t seq = 0; seq < wanted.size(); ++seq) errors[seq] -= wanted[seq];
    judge->backward_judgement(errors);
    judge->step(0.02);
  }
  EXPECT_THAT(judge->judge(kSequences), Pointwise(DoubleNear(0.5), wanted));
}

TEST(Policy, MakesCopiesThatStay) {
  const auto policy = make_policy(tiny(Architecture::kLlama), 1);
  take_steps(*policy, 2);
  const auto before = policy->score(kSequences).logprobs;
  const auto copy = policy->clone();
  take_steps(*policy, 1);

  EXPECT_EQ(copy->score(kSequences).logprobs, before);
  EXPECT_NE(policy->score(kSequences).logprobs, before);
}

TEST(Policy, ReadsWhatItWrote) {
  const ModelConfig config = tiny(Architecture::kLlama);
  const auto policy = make_policy(config, 1), other = make_policy(config, 2);
  take_steps(*policy, 2);
  other->read_weights(*weights_of(*policy, config));
  EXPECT_EQ(other->score(kSequences).logprobs, policy->score(kSequences).logprobs);
}

TEST(Policy, LearnsWhatTheGradientAsksFor) {
  const auto policy = make_policy(tiny(Architecture::kLlama), 1);
  const auto total = [&] {
    double sum = 0;
    for (const double logprob : policy->score(kSequences).logprobs) sum += logprob;
    return sum;
  };
  const double before = total();
  for (int i = 0; i < 30; ++i) {
    policy->forward(kSequences);
    policy->backward({.logprobs = std::vector<double>(kScored, -1.0 / 8)});
    policy->step(0.01);
  }
  EXPECT_GT(total(), before / 10);
  const auto greedy = policy->score(kSequences).greedy;
  EXPECT_EQ(std::count(greedy.begin(), greedy.end(), true), 8);
}

TEST(Policy, IsAFunctionOfItsSeed) {
  const ModelConfig config = tiny(Architecture::kLlama);
  const auto policy = make_policy(config, 1), again = make_policy(config, 1);
  take_steps(*policy, 3);
  take_steps(*again, 3);

  EXPECT_EQ(policy->score(kSequences).logprobs, again->score(kSequences).logprobs);
  EXPECT_NE(policy->score(kSequences).logprobs, make_policy(config, 2)->score(kSequences).logprobs);
}

TEST(Policy, LeavesAllAsItWasWhenAGradientIsNotFinite) {
  const auto policy = make_policy(tiny(Architecture::kLlama), 1);
  const auto before = policy->forward(kSequences).logprobs;
  policy->backward({.logprobs = std::vector<double>(before.size(), NAN)});

  EXPECT_FALSE(std::isfinite(policy->step(0.01)));
  EXPECT_EQ(policy->non_finite(), "the gradient of model.embed_tokens.weight");
  EXPECT_EQ(policy->score(kSequences).logprobs, before);
}

TEST(Policy, GoesOnFromItsStateBitForBit) {
  const auto policy = make_policy(tiny(Architecture::kQwen2), 1);
  take_steps(*policy, 2);
  const std::vector<StateTensor> state = policy->state();
  take_steps(*policy, 3);

  const auto again = make_policy(tiny(Architecture::kQwen2), 2);
  take_steps(*again, 1);
  ASSERT_TRUE(again->restore(state));
  EXPECT_EQ(again->state(), state);
  take_steps(*again, 3);
  EXPECT_EQ(again->state(), policy->state());
}

TEST(Policy, RefusesTheStateOfAnotherModel) {
  ModelConfig larger = tiny(Architecture::kLlama);
  larger.intermediate_size *= 2;
  const auto restored =
      make_policy(tiny(Architecture::kLlama), 1)->restore(make_policy(larger, 1)->state());
  ASSERT_FALSE(restored);
  EXPECT_THAT(restored.error().message(),
              testing::HasSubstr("layers.0.mlp.gate_proj.weight of this shape"));
}

class VersionCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto policy = make_policy(config_, 1);
    first_ = weights_of(*policy, config_);
    take_steps(*policy, 1);
    second_ = weights_of(*policy, config_);
    take_steps(*policy, 1);
    third_ = weights_of(*policy, config_);
    auto check = VersionCheck::create(config_, first_);
    ASSERT_TRUE(check) << check.error().message();
    check_.emplace(std::move(*check));
    check_->remember("step-0", second_);
    check_->remember("step-1", third_);
  }
  VersionCounts count(const Rollout& rollout) {
    const auto counts =
        check_->blocking_check(std::span(&prompt_, 1), std::span(&rollout, 1), differences_);
    EXPECT_TRUE(counts);
    return *counts;
  }

  ModelConfig config_ = tiny(Architecture::kLlama);
  std::vector<std::uint32_t> prompt_{3, 1, 4, 1, 5};
  std::shared_ptr<const WeightSet> first_, second_, third_;
  std::optional<VersionCheck> check_;
  LogprobDifferences differences_;
};

TEST_F(VersionCheckTest, FindsTokensRightUnderTheVersionTheyName) {
  for (const auto& [label, weights] : {std::pair("step-0", second_), std::pair("step-1", third_)}) {
    const VersionCounts counts = count(sample(config_, weights, prompt_, label));
    EXPECT_EQ(counts.checked, 10u);
    EXPECT_EQ(counts.wrong, 0u);
    EXPECT_EQ(counts.discriminating, 10u);
  }
}

TEST_F(VersionCheckTest, CountsTokensThatNameAnotherVersionAsWrong) {
  EXPECT_EQ(count(sample(config_, second_, prompt_, "step-1")).wrong, 10u);
  EXPECT_EQ(count(sample(config_, third_, prompt_, "step-0")).wrong, 10u);
  EXPECT_EQ(count(sample(config_, third_, prompt_, "step-7")).wrong, 10u);
}

TEST_F(VersionCheckTest, ChecksEachPartOfAnAnswerThatSpansAnUpdate) {
  // As a server with `on_update`: "recompute" makes them: the rest is what the new weights alone
  // would make of the text so far.
  Rollout rollout = sample(config_, second_, prompt_, "step-0");
  rollout.tokens.resize(4);
  rollout.logprobs.resize(4);
  auto so_far = prompt_;
  so_far.insert(so_far.end(), rollout.tokens.begin(), rollout.tokens.end());
  const Rollout rest = sample(config_, third_, so_far, "step-1");
  rollout.tokens.insert(rollout.tokens.end(), rest.tokens.begin(), rest.tokens.end());
  rollout.logprobs.insert(rollout.logprobs.end(), rest.logprobs.begin(), rest.logprobs.end());
  rollout.versions = {{"step-0", 0, 4}, {"step-1", 4, 14}};

  const VersionCounts counts = count(rollout);
  EXPECT_EQ(counts.checked, 14u);
  EXPECT_EQ(counts.wrong, 0u);
  rollout.versions = {{"step-0", 0, 5}, {"step-1", 5, 14}};
  EXPECT_EQ(count(rollout).wrong, 1u);
}

TEST_F(VersionCheckTest, ComparesTokensOfOlderVersionsByTheirOwnWeights) {
  count(sample(config_, second_, prompt_, "step-0"));
  EXPECT_EQ(differences_.tokens, 0u) << "without a policy";
  check_->compare_with(make_policy(config_, 9));
  count(sample(config_, third_, prompt_, "step-1"));
  EXPECT_EQ(differences_.tokens, 0u) << "the newest are compared where the policy learns from them";
  count(sample(config_, second_, prompt_, "step-0"));
  EXPECT_EQ(differences_.tokens, 10u);
  EXPECT_LT(differences_.most, 1e-4);
  count(sample(config_, third_, prompt_, "step-0"));
  EXPECT_GT(differences_.most, 1e-3);
}

TEST(LogprobDifferences, KeepNaN) {
  LogprobDifferences differences;
  const Rollout rollout{
      .tokens = {1, 2, 3}, .logprobs = {-1, -2, -3}, .versions = {}, .ended = true};
  const std::vector<double> ours{-1.5, std::nan(""), -3};
  differences.add(ours, rollout, {"", 0, 1});
  EXPECT_EQ(differences.most, 0.5);
  differences.add(ours, rollout, {"", 1, 3});
  EXPECT_TRUE(std::isnan(differences.most));
}

TEST_F(VersionCheckTest, CountsOneChangedBitAsWrong) {
  Rollout rollout = sample(config_, third_, prompt_, "step-1");
  rollout.logprobs[4] = std::nextafter(rollout.logprobs[4], 0.0f);
  EXPECT_EQ(count(rollout).wrong, 1u);
}

}  // namespace
}  // namespace weft
