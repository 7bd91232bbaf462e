#include "weft/trainer/algorithm.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/golden_cases.h"
#include "weft/trainer/grpo.h"
#include "weft/trainer/online_dpo.h"
#include "weft/trainer/ppo.h"
#include "weft/trainer/rloo.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::Pair;

// A step's data as a golden case has it: groups of two answers.
struct Step {
  explicit Step(const GoldenCase& golden) {
    experience.group_size = 2;
    experience.rewards = golden.list("rewards");
    const auto lengths = golden.sizes("lengths");
    std::size_t tok = 0;
    for (const std::size_t length : lengths) {
      Rollout& rollout = experience.rollouts.emplace_back();
      rollout.tokens.resize(length);
      rollout.ended = true;
      const auto row = [&](std::string_view key) {
        const std::vector<double> all = golden.list(key);
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(tok);
        return std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(length));
      };
      data.old_logprobs.push_back(row("old"));
      data.reference.push_back(row("reference"));
      tok += length;
    }
    data.answers = static_cast<double>(lengths.size());
    data.tokens = static_cast<double>(tok);
    scores.logprobs = golden.list("logprobs");
  }

  Experience experience;
  StepData data{.experience = experience};
  TokenScores scores;
  StepMetrics metrics;
};

TEST(Grpo, EqualsTrlsInAllThreeMeans) {
  for (const char* const mean : {"tokens", "answers", "longest"}) {
    const GoldenCase golden(std::string("grpo_") + mean);
    Step step(golden);
    GrpoSection config;
    config.mean_over = mean;
    config.divide_by_deviation = golden.flag("by_deviation");
    KlSection kl;
    kl.coefficient = golden.number("kl");
    const auto grpo = make_grpo(config, kl, static_cast<std::size_t>(golden.number("longest")));

    const LearningPlan plan = grpo->prepare(step.data, step.metrics);
    EXPECT_THAT(plan.answers, ElementsAre(0, 1, 2, 3));
    const AnswerLoss loss = grpo->loss(step.data, plan.answers, step.scores);
    expect_near(loss.loss, golden.number("loss"));
    expect_near(loss.gradient.logprobs, golden.list("gradient"));
  }
}

TEST(Grpo, LearnsNothingFromGroupsOfEqualRewards) {
  Step step(GoldenCase("grpo_tokens"));
  step.experience.rewards = {1, 1, 0, 1};
  const auto grpo = make_grpo({}, {}, 6);
  EXPECT_THAT(grpo->prepare(step.data, step.metrics).answers, ElementsAre(2, 3));
  EXPECT_THAT(differing_groups(step.experience.rewards, 2), ElementsAre(false, true));
}

TEST(Rloo, EqualsTrls) {
  const GoldenCase golden("rloo");
  Step step(golden);
  const auto rloo = make_rloo({}, {});

  const LearningPlan plan = rloo->prepare(step.data, step.metrics);
  const AnswerLoss loss = rloo->loss(step.data, plan.answers, step.scores);
  expect_near(loss.loss, golden.number("loss"));
  expect_near(loss.gradient.logprobs, golden.list("gradient"));
}

TEST(Rloo, CountsAnswersOfOlderVersionsByTheirImportance) {
  Step step(GoldenCase("rloo"));
  const auto rloo = make_rloo({}, {});
  const LearningPlan plan = rloo->prepare(step.data, step.metrics);
  const AnswerLoss plain = rloo->loss(step.data, plan.answers, step.scores);
  for (const std::size_t i : plan.answers) {
    step.data.importance.emplace_back(step.data.length(i), i == 0 ? 0.5 : 1);
  }

  const AnswerLoss loss = rloo->loss(step.data, plan.answers, step.scores);
  for (std::size_t tok = 0; tok < step.scores.logprobs.size(); ++tok) {
    const double importance = tok < step.data.length(0) ? 0.5 : 1;
    EXPECT_DOUBLE_EQ(loss.gradient.logprobs[tok], importance * plain.gradient.logprobs[tok]);
  }
}

TEST(Ppo, HasTheGradientsOfAllItsTerms) {
  Step step(GoldenCase("grpo_tokens"));
  PpoSection config;
  config.entropy_coefficient = 0.01;
  KlSection kl;
  kl.coefficient = 0.1;
  const auto ppo = make_ppo(config, kl);
  for (std::size_t i = 0; i < 4; ++i) step.data.values.emplace_back(step.data.length(i), 0.3);
  const LearningPlan plan = ppo->prepare(step.data, step.metrics);
  step.scores.values.assign(13, 0.4);
  step.scores.entropies.assign(13, 1.0);

  const AnswerLoss loss = ppo->loss(step.data, plan.answers, step.scores);
  for (auto TokenScores::*part :
       {&TokenScores::logprobs, &TokenScores::values, &TokenScores::entropies}) {
    const auto value = [&](std::span<const double> at) {
      TokenScores scores = step.scores;
      (scores.*part).assign(at.begin(), at.end());
      return ppo->loss(step.data, plan.answers, scores).loss;
    };
    expect_gradient(value, step.scores.*part,
                    part == &TokenScores::logprobs ? loss.gradient.logprobs
                    : part == &TokenScores::values ? loss.gradient.values
                                                   : loss.gradient.entropies);
  }
}

TEST(Ppo, ChargesTheKlInTheRewardOfEachToken) {
  Step step(GoldenCase("grpo_tokens"));
  PpoSection config;
  config.whiten_advantages = false;
  config.gae_lambda = 1;
  KlSection kl;
  kl.coefficient = 0.5;
  kl.in = "reward";
  kl.estimator = "k1";
  const auto ppo = make_ppo(config, kl);
  for (std::size_t i = 0; i < 4; ++i) step.data.values.emplace_back(step.data.length(i), 0.0);
  const LearningPlan plan = ppo->prepare(step.data, step.metrics);

  // At ratios of 1 the gradient is - advantage / tokens; the advantage of a token is all that
  // comes.
  step.scores.logprobs = gather(step.data.old_logprobs, plan.answers);
  step.scores.values.assign(13, 0.0);
  const AnswerLoss loss = ppo->loss(step.data, plan.answers, step.scores);
  double coming = step.experience.rewards[0];
  for (std::size_t tok = 5; tok-- > 0;) {
    coming -= 0.5 * (step.data.old_logprobs[0][tok] - step.data.reference[0][tok]);
    EXPECT_NEAR(loss.gradient.logprobs[tok], -coming / 13, 1e-12);
  }
}

TEST(OnlineDpo, PairsTheBestWithTheWorst) {
  EXPECT_THAT(best_and_worst(std::vector<double>{1, 3, 2, 5, 5, 5, 0, 0, 1}, 3),
              ElementsAre(Pair(1, 0), Pair(8, 6)));
}

TEST(OnlineDpo, HasTheGradientOfItsLoss) {
  Step step(GoldenCase("grpo_tokens"));
  for (const char* const kind : {"dpo", "ipo"}) {
    DpoSection config;
    config.loss = kind;
    const auto dpo = make_online_dpo(config);
    const LearningPlan plan = dpo->prepare(step.data, step.metrics);
    EXPECT_THAT(plan.answers, ElementsAre(0, 1, 3, 2));
    EXPECT_EQ(plan.together, 2u);
    const auto loss = [&](std::span<const double> logprobs) {
      TokenScores scores;
      scores.logprobs.assign(logprobs.begin(), logprobs.end());
      return dpo->loss(step.data, plan.answers, scores);
    };
    expect_gradient([&](auto logprobs) { return loss(logprobs).loss; }, step.scores.logprobs,
                    loss(step.scores.logprobs).gradient.logprobs);
  }
}

}  // namespace
}  // namespace weft
