#include "weft/trainer/scorer.h"

#include <deque>
#include <mutex>

#include <boost/json.hpp>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/http/server.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

std::unique_ptr<Task> task(std::string_view name, std::uint64_t digits) {
  auto made = make_task(name, digits);
  WEFT_CHECK(made.has_value());
  return std::move(*made);
}

Experience experience_of(const Problem& problem, const std::vector<std::string>& answers,
                         bool ended = true) {
  Experience experience;
  experience.group_size = answers.size();
  experience.problems = {problem};
  for (const std::string& answer : answers) {
    Rollout rollout;
    rollout.tokens = Vocabulary::encode(answer);
    if (ended) rollout.tokens.push_back(Vocabulary::kEnd);
    rollout.ended = ended;
    experience.prompts.push_back(Vocabulary::encode(problem.question));
    experience.rollouts.push_back(std::move(rollout));
  }
  return experience;
}

double score_of(const Task& task, std::string rule, const Problem& problem, std::string answer,
                bool ended = true) {
  auto scorer = make_rule_scorer(task, std::vector{std::move(rule)});
  WEFT_CHECK(scorer.has_value());
  return (*scorer)
      ->blocking_score(experience_of(problem, {std::move(answer)}, ended))
      ->at(0)
      .value();
}

TEST(RuleScorer, HasARuleForTheExactAnswerForItsFormAndForSums) {
  const auto add = task("add", 2);
  const Problem problem{"47+85=", "132"};

  EXPECT_EQ(score_of(*add, "exact", problem, "132"), 1);
  EXPECT_EQ(score_of(*add, "exact", problem, "0132"), 0);
  EXPECT_EQ(score_of(*add, "exact", problem, "132", false), 0);
  EXPECT_EQ(score_of(*add, "format", problem, "999"), 1);
  EXPECT_EQ(score_of(*add, "format", problem, "99"), 0);
  EXPECT_EQ(score_of(*add, "format", problem, "9+9"), 0);
  EXPECT_EQ(score_of(*add, "format", problem, "999", false), 0);
  EXPECT_EQ(score_of(*add, "arithmetic", problem, "0132"), 1);
  EXPECT_EQ(score_of(*add, "arithmetic", problem, "133"), 0);
  EXPECT_EQ(score_of(*add, "arithmetic", problem, "132+"), 0);
  EXPECT_EQ(score_of(*add, "arithmetic", problem, ""), 0);
  EXPECT_EQ(score_of(*add, "arithmetic", problem, "99999999999999999999999"), 0);
}

TEST(RuleScorer, UsesTheTasksOwnJudgementAndAddsUp) {
  const auto smooth = task("smooth", 3);
  const Problem problem{"555>", "555"};

  EXPECT_DOUBLE_EQ(score_of(*smooth, "task", problem, "666"), std::exp(-3.0 / 12));
  EXPECT_DOUBLE_EQ(score_of(*smooth, "0.25 format", problem, "666"), 0.25);
  auto both = make_rule_scorer(*smooth, std::vector<std::string>{"exact", "0.5 format"});
  EXPECT_THAT(*(*both)->blocking_score(experience_of(problem, {"555", "5"})),
              ElementsAre(Optional(1.5), Optional(0.0)));
}

TEST(RuleScorer, NamesWhatIsWrongWithARule) {
  const auto sort = task("sort", 3);
  const auto message = [&](std::string rule) {
    const auto made = make_rule_scorer(*sort, std::vector{std::move(rule)});
    return made ? std::string() : made.error().message();
  };
  EXPECT_THAT(message("exakt"), HasSubstr("no rule `exakt`; the rules are task, exact, format"));
  EXPECT_THAT(message("x exact"), HasSubstr("`x exact` must be a name, or a number and a name"));
  EXPECT_THAT(message("nan exact"), HasSubstr("a number and a name"));
  EXPECT_THAT(message("arithmetic"), HasSubstr("questions that are sums"));
}

// Another program that scores: it answers what it is told to, in turn, and keeps what it was asked.
class Judge {
 public:
  explicit Judge(std::deque<http::Response> answers) : answers_(std::move(answers)) {
    http::Route route;
    route.method = "POST";
    route.pattern = "/judge/v1";
    route.access = http::Access::kOpen;
    route.handler = [this](const http::Request& request, std::shared_ptr<http::Exchange> exchange) {
      const std::lock_guard lock(mutex_);
      asked_.push_back(request.body);
      http::Response answer = answers_.front();
      if (answers_.size() > 1) answers_.pop_front();
      exchange->respond(std::move(answer));
    };
    http::ServerOptions options;
    options.port = 0;
    options.io_threads = 1;
    std::vector<http::Route> routes;
    routes.push_back(std::move(route));
    server_ = http::Server::create(options, std::move(routes)).value();
  }

  std::unique_ptr<Scorer> scorer(HttpScorerOptions options = {}) const {
    options.url = fmt::format("http://127.0.0.1:{}/judge/v1", server_->port());
    options.first_wait = 1ms;
    options.retries = 3;
    return make_http_scorer(options).value();
  }
  const std::vector<std::string>& asked() const { return asked_; }

 private:
  std::mutex mutex_;
  std::deque<http::Response> answers_;
  std::vector<std::string> asked_;
  std::unique_ptr<http::Server> server_;
};

// `count` answers to one question.
Experience asked_for(std::size_t count) {
  return experience_of({"31>", "13"}, std::vector<std::string>(count, "13"));
}

TEST(HttpScorer, SendsWhatWasSampledAndTakesTheScores) {
  Judge judge({http::json_response(R"({"scores": [0.5, -2]})")});
  const auto scorer = judge.scorer();

  EXPECT_THAT(scorer->blocking_score(asked_for(2)).value(),
              ElementsAre(Optional(0.5), Optional(-2.0)));
  const auto body = boost::json::parse(judge.asked().at(0));
  EXPECT_EQ(body.at("samples").as_array().size(), 2u);
  EXPECT_EQ(body.at("samples").at(0),
            boost::json::parse(R"({"question": "31>", "answer": "13", "ended": true,
                                   "question_ids": [3, 1, 12], "answer_ids": [1, 3, 13]})"));
  EXPECT_EQ(scorer->counts(), (ScoreCounts{1, 0, 0}));
}

TEST(HttpScorer, SplitsInBatchesAndKeepsTheOrder) {
  Judge judge({http::json_response(R"({"scores": [1]})")});
  HttpScorerOptions options;
  options.batch = 1;

  EXPECT_THAT(judge.scorer(options)->blocking_score(asked_for(3)).value(),
              ElementsAre(Optional(1.0), Optional(1.0), Optional(1.0)));
  EXPECT_EQ(judge.asked().size(), 3u);
}

TEST(HttpScorer, TriesAgainWhatMayPassAndCountsIt) {
  for (auto bad : {http::json_response("{}", 500), http::json_response("{}", 429),
                   http::json_response("no json"), http::json_response(R"({"scores": []})"),
                   http::json_response(R"({"scores": ["1"]})"),
                   http::json_response(R"({"scores": [1e999]})")}) {
    Judge judge({bad, bad, http::json_response(R"({"scores": [0.5]})")});
    const auto scorer = judge.scorer();

    const auto scores = scorer->blocking_score(asked_for(1));
    ASSERT_TRUE(scores) << scores.error().message();
    EXPECT_THAT(*scores, ElementsAre(Optional(0.5))) << bad.body;
    EXPECT_EQ(scorer->counts(), (ScoreCounts{3, 2, 0}));
  }
}

TEST(HttpScorer, HasNoScoreRatherThanZeroWhereTheOtherHasNone) {
  Judge judge({http::json_response(R"({"scores": [null, 0.5]})")});
  const auto scorer = judge.scorer();

  EXPECT_THAT(scorer->blocking_score(asked_for(2)).value(),
              ElementsAre(std::nullopt, Optional(0.5)));
  EXPECT_EQ(scorer->counts(), (ScoreCounts{1, 0, 1}));
}

TEST(HttpScorer, SaysWhyAfterAllTries) {
  Judge judge({http::error_response(Error(ErrorCode::kInternal, "no judge today"))});
  const auto scorer = judge.scorer();

  const auto scores = scorer->blocking_score(asked_for(1));
  ASSERT_FALSE(scores);
  EXPECT_THAT(scores.error().message(), HasSubstr("/judge/v1, after 4 tries: no judge today"));
  EXPECT_EQ(scorer->counts(), (ScoreCounts{4, 3, 1}));
}

TEST(HttpScorer, DoesNotTryAgainWhatIsWrong) {
  Judge judge({http::error_response(Error(ErrorCode::kInvalidArgument, "what is this?"))});
  const auto scorer = judge.scorer();

  const auto scores = scorer->blocking_score(asked_for(1));
  ASSERT_FALSE(scores);
  EXPECT_THAT(scores.error().message(), HasSubstr("what is this?"));
  EXPECT_EQ(judge.asked().size(), 1u);
}

TEST(HttpScorer, GivesUpASilentServer) {
  HttpScorerOptions options;
  options.url = "http://127.0.0.1:9/score";
  options.retries = 1;
  options.first_wait = 1ms;
  const auto scorer = make_http_scorer(options).value();

  const auto scores = scorer->blocking_score(asked_for(1));
  ASSERT_FALSE(scores);
  EXPECT_EQ(scores.error().code(), ErrorCode::kDisconnected);
  EXPECT_FALSE(make_http_scorer({.url = "judge"}));
}

}  // namespace
}  // namespace weft
