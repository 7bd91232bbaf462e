#include "weft/trainer/tasks.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/text/tokenizer.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Task> task(std::string_view name, std::uint64_t digits) {
  auto made = make_task(name, digits);
  WEFT_CHECK(made.has_value());
  return std::move(*made);
}

TEST(Vocabulary, GivesEachCharacterItsPlace) {
  EXPECT_THAT(Vocabulary::encode("07+=>$_"),
              ElementsAre(0, 7, 10, 11, 12, Vocabulary::kEnd, Vocabulary::kPadding));
  EXPECT_THAT(Vocabulary::encode("x"), ElementsAre(Vocabulary::kUnknown));
  EXPECT_EQ(Vocabulary::decode(Vocabulary::encode("31452>12345$")), "31452>12345$");
}

TEST(Vocabulary, HuggingFaceTokenizersReadItTheSame) {
  const auto tokenizer = Tokenizer::parse(Vocabulary::tokenizer_json());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();

  const std::string text = "31452>12345$";
  const auto ids = (*tokenizer)->encode(text, true);
  ASSERT_TRUE(ids);
  EXPECT_EQ(*ids, Vocabulary::encode(text));
  EXPECT_EQ((*tokenizer)->decode(*ids, false).value(), text);
  EXPECT_EQ((*tokenizer)->decode(*ids, true).value(), "31452>12345");
  EXPECT_EQ((*tokenizer)->vocab_size(), Vocabulary::kCharacters.size());
  EXPECT_EQ((*tokenizer)->encode("x", true).value(), Vocabulary::encode("x"));
}

TEST(SortTask, AnswersWithTheSameDigitsInOrder) {
  const auto sort = task("sort", 5);
  Random random(7);
  for (int i = 0; i < 100; ++i) {
    const Problem problem = sort->draw(random);
    ASSERT_EQ(problem.question.size(), 6u);
    ASSERT_EQ(problem.question.back(), '>');
    EXPECT_TRUE(std::ranges::is_sorted(problem.answer));
    EXPECT_TRUE(std::ranges::is_permutation(problem.question.substr(0, 5), problem.answer));
    EXPECT_EQ(problem.answer.size() + 1, sort->max_answer_tokens());
  }
}

TEST(AddTask, AnswersWithTheSum) {
  const auto add = task("add", 2);
  Random random(7);
  for (int i = 0; i < 100; ++i) {
    const Problem problem = add->draw(random);
    ASSERT_EQ(problem.question.size(), 6u);
    const int sum =
        std::stoi(problem.question.substr(0, 2)) + std::stoi(problem.question.substr(3, 2));
    EXPECT_EQ(std::stoi(problem.answer), sum);
    EXPECT_EQ(problem.answer.size() + 1, add->max_answer_tokens());
  }
}

int smooth_cost(std::string_view question, std::string_view answer) {
  int sum = 0;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    sum += (answer[i] - question[i]) * (answer[i] - question[i]);
    if (i > 0) sum += (answer[i] - answer[i - 1]) * (answer[i] - answer[i - 1]);
  }
  return sum;
}

TEST(SmoothTask, AnswersWithTheLeastCostOfAll) {
  const auto smooth = task("smooth", 3);
  Random random(7);
  for (int i = 0; i < 20; ++i) {
    const Problem problem = smooth->draw(random);
    int least = smooth_cost(problem.question, problem.answer);
    EXPECT_EQ(smooth->reward(problem, problem.answer, true), 1.0);
    for (int answer = 0; answer < 1000; ++answer) {
      const std::string text = {static_cast<char>('0' + answer / 100),
                                static_cast<char>('0' + answer / 10 % 10),
                                static_cast<char>('0' + answer % 10)};
      EXPECT_GE(smooth_cost(problem.question, text), least) << problem.question << text;
    }
  }
}

TEST(SmoothTask, RewardsByTheCostAboveTheLeast) {
  const auto smooth = task("smooth", 3);
  const Problem problem{"555>", "555"};

  EXPECT_DOUBLE_EQ(smooth->reward(problem, "565", true), std::exp(-3.0 / 12));
  EXPECT_DOUBLE_EQ(smooth->reward(problem, "666", true), std::exp(-3.0 / 12));
  for (const char* const answer : {"55", "5555", "55+", ""}) {
    EXPECT_EQ(smooth->reward(problem, answer, true), 0.0) << answer;
  }
  EXPECT_EQ(smooth->reward(problem, "555", false), 0.0);
}

TEST(SmoothTask, ShowsWorseThanItWants) {
  const auto smooth = task("smooth", 5);
  Random random(7);
  double shown = 0, attempted = 0;
  for (int i = 0; i < 500; ++i) {
    const Problem problem = smooth->draw(random);
    shown += smooth->reward(problem, smooth->demonstration(problem, random), true) / 500;
    attempted += smooth->reward(problem, smooth->attempt(problem, random), true) / 500;
  }
  EXPECT_LT(shown, 0.25);
  EXPECT_GT(attempted, shown);
}

TEST(Preference, IsOfTwoAnswersToOneQuestionWithTheBetterFirst) {
  for (const std::string_view name : task_names()) {
    const auto made = task(name, 4);
    auto source = ProblemSource::make(*made, 100, 1);
    ASSERT_TRUE(source);
    for (const Preference& pair : source->draw_preferences(200, 0.05)) {
      EXPECT_GE(pair.margin, 0.05);
      EXPECT_DOUBLE_EQ(made->reward(pair.problem, pair.chosen, true) -
                           made->reward(pair.problem, pair.rejected, true),
                       pair.margin);
    }
    EXPECT_EQ(source->held_out_preferences(50, 0.05),
              ProblemSource::make(*made, 100, 2)->held_out_preferences(50, 0.05));
  }
}

TEST(Task, RewardsTheRightAnswerAndItsEndOnly) {
  const auto sort = task("sort", 3);
  const Problem problem{"312>", "123"};

  EXPECT_EQ(sort->reward(problem, "123", true), 1.0);
  EXPECT_EQ(sort->reward(problem, "123", false), 0.0);
  EXPECT_EQ(sort->reward(problem, "12", true), 0.0);
  EXPECT_EQ(sort->reward(problem, "132", true), 0.0);
}

TEST(MakeTask, NamesTheTasksThereAre) {
  const auto made = make_task("reverse", 5);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("sort, add, smooth"));
}

TEST(ProblemSource, NeverTrainsOnWhatIsHeldOut) {
  const auto sort = task("sort", 2);
  auto source = ProblemSource::make(*sort, 50, 1);
  ASSERT_TRUE(source);

  std::set<std::string> held_out;
  for (const Problem& problem : source->held_out()) held_out.insert(problem.question);
  EXPECT_EQ(held_out.size(), 50u);
  for (const Problem& problem : source->draw(500))
    EXPECT_FALSE(held_out.contains(problem.question));
}

TEST(ProblemSource, HoldsOutTheSameForEverySeedAndTrainsOnOthers) {
  const auto sort = task("sort", 5);
  auto first = ProblemSource::make(*sort, 100, 1);
  auto second = ProblemSource::make(*sort, 100, 2);
  auto again = ProblemSource::make(*sort, 100, 1);

  EXPECT_EQ(first->held_out(), second->held_out());
  const auto drawn = first->draw(20);
  EXPECT_NE(drawn, second->draw(20));
  EXPECT_EQ(drawn, again->draw(20));
}

TEST(ProblemSource, HasTwoThousandHeldOutProblemsForEveryTask) {
  for (const auto& [name, digits] : {std::pair("sort", 5), {"add", 2}, {"smooth", 5}}) {
    const auto made = task(name, static_cast<std::uint64_t>(digits));
    const auto source = ProblemSource::make(*made, 2000, 1);
    ASSERT_TRUE(source) << source.error().message();
    EXPECT_EQ(source->held_out().size(), 2000u);
  }
}

TEST(ProblemSource, GoesOnFromItsRandomState) {
  const auto smooth = task("smooth", 5);
  auto source = ProblemSource::make(*smooth, 100, 1);
  source->draw_demonstrations(10);
  auto resumed = ProblemSource::make(*smooth, 100, 2);
  resumed->restore(source->random_state());
  EXPECT_EQ(source->draw_demonstrations(10), resumed->draw_demonstrations(10));
}

TEST(ProblemSource, RefusesToHoldOutMoreThanHalf) {
  const auto sort = task("sort", 1);
  const auto source = ProblemSource::make(*sort, 6, 1);
  ASSERT_FALSE(source);
  EXPECT_THAT(source.error().message(), HasSubstr("10 questions"));
}

}  // namespace
}  // namespace weft
