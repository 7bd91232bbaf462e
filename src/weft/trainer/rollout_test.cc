#include "weft/trainer/rollout.h"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// As vLLM 0.32 answers, less the fields that are not read.
constexpr std::string_view kAnswer =
    R"({"request_id": "generate-tokens-1", "model": "m", "choices": [
  {"index": 0, "finish_reason": "stop", "stop_reason": null, "token_ids": [4, 13],
   "weight_versions": [{"version": "step-1", "start": 0, "end": 1}, {"version": "step-2", "start": 1, "end": 2}],
   "logprobs": {"content": [{"token_id": 4, "logprob": -0.10000000149011612, "rank": 1, "top_logprobs": []},
                            {"token_id": 13, "logprob": -2.5, "rank": 3, "top_logprobs": []}]}},
  {"index": 1, "finish_reason": "length", "token_ids": [5],
   "weight_versions": [{"version": "step-1", "start": 0, "end": 1}],
   "logprobs": {"content": [{"token_id": 5, "logprob": 0, "rank": 1, "top_logprobs": []}]}}]})";

std::string error_of(std::string_view from, std::string_view to) {
  http::Response response;
  response.body = kAnswer;
  response.body.replace(response.body.find(from), from.size(), to);
  const auto rollouts = parse_rollouts(response, 2, 16);
  return rollouts ? "no error" : rollouts.error().message();
}

TEST(RolloutRequest, AsksForTokensWithLogprobs) {
  const http::Request request = make_rollout_request(
      {.prompt = {1, 2}, .count = 16, .temperature = 1.0, .max_tokens = 6, .seed = 1ull << 62});

  EXPECT_EQ(request.target, "/inference/v1/generate");
  const auto body = boost::json::parse(request.body);
  EXPECT_EQ(body.at("token_ids"), boost::json::value({1, 2}));
  const auto& sampling = body.at("sampling_params").as_object();
  EXPECT_EQ(sampling.at("n").to_number<int>(), 16);
  EXPECT_EQ(sampling.at("temperature").to_number<double>(), 1.0);
  EXPECT_EQ(sampling.at("seed").to_number<std::int64_t>(), 1ll << 62);
  EXPECT_EQ(sampling.at("logprobs").to_number<int>(), 0);
}

TEST(ParseRollouts, ReadsTokensLogprobsAndVersions) {
  http::Response response;
  response.body = kAnswer;
  const auto rollouts = parse_rollouts(response, 2, 16);
  ASSERT_TRUE(rollouts) << rollouts.error().message();

  const Rollout& first = rollouts->at(0);
  EXPECT_THAT(first.tokens, ElementsAre(4, 13));
  EXPECT_THAT(first.logprobs, ElementsAre(-0.1f, -2.5f));
  EXPECT_TRUE(first.ended);
  ASSERT_EQ(first.versions.size(), 2u);
  EXPECT_EQ(first.versions[1].label, "step-2");
  EXPECT_EQ(first.versions[1].begin, 1u);
  EXPECT_FALSE(rollouts->at(1).ended);
}

TEST(ParseRollouts, NamesTheFieldThatCannotBeUsed) {
  EXPECT_THAT(error_of("\"token_ids\": [5]", "\"token_ids\": [16]"), HasSubstr("ids below 16"));
  EXPECT_THAT(error_of("\"token_ids\": [5]", "\"token_ids\": []"), HasSubstr("token_ids"));
  EXPECT_THAT(error_of("\"token_ids\": [5]", "\"token_ids\": [5, 6]"),
              HasSubstr("logprobs.content"));
  EXPECT_THAT(error_of("\"logprob\": 0,", "\"logprob\": null,"),
              HasSubstr("logprob must be a number"));
  EXPECT_THAT(error_of("\"start\": 1", "\"start\": 0"), HasSubstr("weight_versions"));
  EXPECT_THAT(error_of("\"length\"", "\"abort\""), HasSubstr("finish_reason"));
  EXPECT_THAT(error_of("\"choices\"", "\"chosen\""), HasSubstr("choices must be a list of 2"));
}

TEST(ParseRollouts, PassesTheServersOwnErrorOn) {
  http::Response response;
  response.status = 400;
  response.body = R"({"error": {"message": "token 99 is out of range", "code": 400}})";
  const auto rollouts = parse_rollouts(response, 2, 16);
  ASSERT_FALSE(rollouts);
  EXPECT_EQ(rollouts.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(rollouts.error().message(), HasSubstr("token 99"));
}

}  // namespace
}  // namespace weft
