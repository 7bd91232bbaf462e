#include "weft/trainer/score_server.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/trainer/scorer.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

// The score is the answer's length; an empty prompt has none.
class LengthScorer final : public Scorer {
 public:
  Result<std::vector<std::optional<double>>> blocking_score(const Experience& experience) override {
    std::vector<std::optional<double>> scores;
    for (const Rollout& rollout : experience.rollouts) {
      scores.push_back(rollout.ended
                           ? std::optional(0.5 * static_cast<double>(rollout.tokens.size()))
                           : std::nullopt);
    }
    return scores;
  }
};

Experience two_answers() {
  Experience experience;
  experience.group_size = 2;
  experience.problems = {{"31>", "13"}};
  experience.prompts = {{3, 1, 12}, {3, 1, 12}};
  experience.rollouts = {{{1, 3, 13}, {}, {}, true}, {{1}, {}, {}, false}};
  return experience;
}

TEST(ScoreServer, AnswersWhatAnHttpScorerAsks) {
  http::ServerOptions options;
  options.port = 0;
  options.io_threads = 1;
  auto server = ScoreServer::create(std::make_unique<LengthScorer>(), options);
  ASSERT_TRUE(server) << server.error().message();
  HttpScorerOptions asking;
  asking.url = fmt::format("http://127.0.0.1:{}/score", (*server)->port());
  const auto scorer = make_http_scorer(asking).value();

  EXPECT_THAT(scorer->blocking_score(two_answers()).value(),
              ElementsAre(Optional(1.5), std::nullopt));
  EXPECT_EQ(scorer->counts(), (ScoreCounts{1, 0, 1}));
}

TEST(ParseScoreRequest, NamesWhatIsWrong) {
  const auto error_of = [](std::string_view body) {
    const auto parsed = parse_score_request(body);
    return parsed ? std::string("no error") : parsed.error().message();
  };
  EXPECT_THAT(error_of("{}"), HasSubstr("samples must be a list"));
  EXPECT_THAT(
      error_of(R"({"samples": [{"question_ids": [16], "answer_ids": [1], "ended": true}]})"),
      HasSubstr("samples[0].question_ids must be ids"));
  EXPECT_THAT(error_of(R"({"samples": [{"question_ids": [1], "answer_ids": [], "ended": true}]})"),
              HasSubstr("samples[0].answer_ids must be ids"));
  EXPECT_THAT(error_of(R"({"samples": [{"question_ids": [1], "answer_ids": [1]}]})"),
              HasSubstr("samples[0].ended must be true or false"));
}

}  // namespace
}  // namespace weft
