// Runs against an engine that does what the test says, and exchanges that keep what they were
// given.

#include "weft/serving/generation_service.h"

#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "weft/serving/scripted_engine_test.h"

namespace weft {
namespace {

class KeptExchange : public http::Exchange {
 public:
  void respond(http::Response response) override {
    status = response.status;
    body = std::move(response.body);
  }
  void respond_from(http::Response, std::vector<http::BodyPart>,
                    std::shared_ptr<const void>) override {}
  void begin_stream(http::Response head) override { status = head.status; }
  void write(std::string piece) override { body += piece; }
  void end() override { ended = true; }
  void on_close(std::function<void()> callback) override { closed = std::move(callback); }
  void close() override {}

  int status = 0;
  bool ended = false;
  std::string body;
  std::function<void()> closed;
};

class GenerationServiceTest : public testing::Test {
 protected:
  GenerationServiceTest() {
    ServedModel model;
    model.name = "m";
    model.vocab_size = 272;
    model.max_model_len = 64;
    model.eos_token_ids = {257};
    model_ = std::make_shared<const ServedModel>(std::move(model));
  }
  static GenerationRequest ids_request() {
    GenerationRequest request;
    request.api = Api::kGenerate;
    request.prompts.push_back({{1, 2}, std::nullopt});
    return request;
  }
  std::shared_ptr<KeptExchange> run(GenerationRequest request) {
    auto exchange = std::make_shared<KeptExchange>();
    service_.run(std::move(request), model_, exchange);
    return exchange;
  }
  // What was posted is rendered, and nothing more will be.
  void settle() { render_.blocking_stop(); }
  std::size_t cancelled() {
    return engine_.cancelled.with([](auto& ids) { return ids.size(); });
  }

  std::shared_ptr<const ServedModel> model_;
  ScriptedEngine engine_;
  JobThread render_{"weft-render", JobThread::Rest::kRun};
  GenerationService service_{engine_, render_};
};

TEST_F(GenerationServiceTest, AnswersOnceAllSequencesHaveEnded) {
  GenerationRequest request = ids_request();
  request.n = 2;
  request.sampling.seed = 7;
  const auto exchange = run(std::move(request));
  engine_.say(1, 9);
  engine_.end(1, FinishReason::kLength);
  engine_.say(0, 8);
  engine_.end(0, FinishReason::kStop);
  settle();

  EXPECT_EQ(engine_.requests[0].sampling.seed, 7u);
  EXPECT_EQ(engine_.requests[1].sampling.seed, 8u);
  const auto choices = boost::json::parse(exchange->body).at("choices").as_array();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(boost::json::serialize(choices[0].at("token_ids")), "[8]");
  EXPECT_EQ(boost::json::serialize(choices[1].at("token_ids")), "[9]");
}

TEST_F(GenerationServiceTest, TheEngineIsToldEndTokensAndWhatAnUpdateDoes) {
  GenerationRequest request = ids_request();
  request.on_update = OnUpdate::kFinish;
  run(std::move(request));
  settle();

  EXPECT_EQ(engine_.requests[0].on_update, OnUpdate::kFinish);
  EXPECT_EQ(engine_.requests[0].end_token_ids, (std::vector<std::uint32_t>{257}));
  engine_.requests.clear();
}

TEST_F(GenerationServiceTest, AnEngineWithoutRoomIsAnErrorAndNothingIsLeftRunning) {
  engine_.room = 1;
  GenerationRequest request = ids_request();
  request.n = 3;
  const auto exchange = run(std::move(request));
  settle();

  EXPECT_EQ(exchange->status, 503);
  EXPECT_EQ(cancelled(), 1u);
  engine_.requests.clear();
  EXPECT_EQ(service_.active(), 0u);
}

TEST_F(GenerationServiceTest, AClientThatIsGoneEndsItsSequences) {
  const auto exchange = run(ids_request());
  exchange->closed();
  engine_.end(0, FinishReason::kAbort);
  settle();

  EXPECT_EQ(cancelled(), 1u);
  EXPECT_EQ(exchange->body, "");
  engine_.requests.clear();
  EXPECT_EQ(service_.active(), 0u);
}

TEST_F(GenerationServiceTest, AFailedSequenceFailsTheRequestAlone) {
  const auto broken = run(ids_request());
  const auto neighbour = run(ids_request());
  engine_.end(0, FinishReason::kError, Error(ErrorCode::kInternal, "the logits are NaN"));
  engine_.say(1, 5);
  engine_.end(1, FinishReason::kLength);
  settle();

  EXPECT_EQ(broken->status, 500);
  EXPECT_NE(broken->body.find("the logits are NaN"), std::string::npos);
  EXPECT_EQ(neighbour->status, 200);
}

TEST_F(GenerationServiceTest, AStreamThatFailsEndsWithAnErrorEvent) {
  GenerationRequest request = ids_request();
  request.stream = true;
  const auto exchange = run(std::move(request));
  engine_.say(0, 5);
  engine_.end(0, FinishReason::kError, Error(ErrorCode::kInternal, "the logits are NaN"));
  settle();

  EXPECT_TRUE(exchange->body.ends_with("data: [DONE]\n\n"));
  EXPECT_NE(exchange->body.find("data: {\"error\""), std::string::npos);
  EXPECT_TRUE(exchange->ended);
}

TEST_F(GenerationServiceTest, AbortsByIdWithAndWithoutPrefix) {
  GenerationRequest first = ids_request();
  first.request_id = "one";
  run(std::move(first));
  run(ids_request());

  service_.abort(std::vector<std::string>{"generate-tokens-one"});
  EXPECT_EQ(cancelled(), 1u);
  service_.abort(std::vector<std::string>{"one", "unknown"});
  EXPECT_EQ(cancelled(), 2u);
  service_.abort({});
  EXPECT_EQ(cancelled(), 4u);
  engine_.requests.clear();
}

}  // namespace
}  // namespace weft
