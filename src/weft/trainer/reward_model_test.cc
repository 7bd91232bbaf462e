#include "weft/trainer/reward_model.h"

#include <cmath>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

std::filesystem::path models() {
  return source_dir() / "tests/golden/models";
}

std::unique_ptr<Policy> load_judge() {
  auto model = blocking_load_reward_model(models() / "judge", 1);
  WEFT_CHECK(model.has_value());
  return std::move(*model);
}

template <typename T>
std::vector<T> list(const boost::json::value& value) {
  return boost::json::value_to<std::vector<T>>(value);
}

// Within 1e-5, relative where it is more than 1.
void expect_close(std::span<const double> found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-5 * std::max(1.0, std::abs(expected[i]))) << i;
  }
}

// Made by tests/golden/make_judge.py.
TEST(RewardModel, OfTransformersScoresAsThere) {
  const auto model = load_judge();
  const auto text = blocking_read_file(models() / "judge.json").value();
  const boost::json::value root = boost::json::parse(text);
  for (const boost::json::value& item : root.as_array()) {
    const boost::json::object& golden = item.as_object();
    const TokenSequence sequence{list<std::uint32_t>(golden.at("prompt")),
                                 list<std::uint32_t>(golden.at("answer"))};
    const TokenScores scores = model->score(std::span(&sequence, 1));

    expect_close(scores.logprobs, list<double>(golden.at("logprobs")));
    expect_close(scores.entropies, list<double>(golden.at("entropies")));
    expect_close(model->judge(std::span(&sequence, 1)), {golden.at("score").to_number<double>()});
  }
}

TEST(RewardModel, JudgesTheBetterOfAPair) {
  const auto model = load_judge();
  const Problem problem{"12>", "12"};
  const Preference pair{problem, "12", "21", 1}, turned{problem, "21", "12", 1};
  EXPECT_EQ(pair_accuracy(*model, std::vector<Preference>{pair, turned}), 0.5);
}

TEST(RewardModelScorer, ChargesAnswersWithoutAnEnd) {
  Experience experience;
  experience.problems = {{"12>", "12"}, {"12>", "12"}};
  experience.prompts = {{1, 2, 12}, {1, 2, 12}};
  Rollout rollout;
  rollout.tokens = {1, 2};
  experience.rollouts = {rollout, rollout};
  experience.rollouts[0].ended = true;

  const auto scores = RewardModelScorer(load_judge(), 5).blocking_score(experience);
  ASSERT_TRUE(scores);
  EXPECT_NEAR(*(*scores)[0] - 5, *(*scores)[1], 1e-5);
}

TEST(RewardModel, SaysWhatAFolderLacks) {
  const auto model = blocking_load_reward_model(models() / "llama", 1);
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message(), testing::HasSubstr("ForSequenceClassification"));
}

}  // namespace
}  // namespace weft
