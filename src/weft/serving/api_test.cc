// Requests in, answers out, with no engine and no socket.

#include <cstring>
#include <limits>
#include <map>
#include <regex>
#include <string>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/serving/api_error.h"
#include "weft/serving/control_request.h"
#include "weft/serving/generation_request.h"
#include "weft/serving/metrics.h"
#include "weft/serving/render.h"
#include "weft/serving/stop_filter.h"
#include "weft/serving/version_history.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

namespace json = boost::json;

// Ids only: no tokenizer.
ServedModel id_model() {
  ServedModel model;
  model.name = model.root = "m";
  model.weft_version = "1";
  model.vocab_size = 272;
  model.max_model_len = 64;
  model.eos_token_ids = {257};
  return model;
}

Result<GenerationRequest> completion(std::string_view text) {
  return parse_completion(json::parse(json::string_view(text.data(), text.size())).as_object(),
                          id_model());
}

std::string refusal(const Result<GenerationRequest>& request) {
  return request ? "accepted"
                 : std::string(request.error().param()) + " " + request.error().message();
}

http::Request post(std::string body, std::string type = "application/json") {
  http::Request request;
  request.method = "POST";
  request.body = std::move(body);
  if (!type.empty()) request.headers = {{"Content-Type", type}};
  return request;
}

http::Request query(std::string name, std::string value) {
  http::Request request;
  request.query = {{std::move(name), std::move(value)}};
  return request;
}

// ---- generation requests ----

TEST(ParseCompletion, ReadsIdsAndDefaults) {
  const auto request = completion(R"({"prompt": [65, 66], "model": "m", "unknown": 1})");

  ASSERT_TRUE(request) << refusal(request);
  EXPECT_EQ(request->prompts.at(0).ids, (std::vector<std::uint32_t>{65, 66}));
  EXPECT_EQ(request->sampling.max_tokens, 16u);
  EXPECT_EQ(request->sampling.temperature, 1.0);
  EXPECT_FALSE(request->sampling.logprobs);
  EXPECT_EQ(request->n, 1u);
}

TEST(ParseCompletion, ReadsAListOfIdLists) {
  const auto request = completion(R"({"prompt": [[65], [66, 67]], "n": 2})");

  ASSERT_TRUE(request) << refusal(request);
  EXPECT_EQ(request->prompts.at(1).ids, (std::vector<std::uint32_t>{66, 67}));
}

TEST(ParseCompletion, RefusesWhatIsNoPrompt) {
  EXPECT_EQ(completion(R"({})").error().param(), "prompt");
  EXPECT_EQ(completion(R"({"prompt": null})").error().param(), "prompt");
  EXPECT_EQ(completion(R"({"prompt": []})").error().message(), "You must pass at least one prompt");
  for (const char* body :
       {R"({"prompt": [[]]})", R"({"prompt": [[65], "a"]})", R"({"prompt": 5})",
        R"({"prompt": [true]})", R"({"prompt": [1.5]})", R"({"prompt": [[[65]]]})"}) {
    EXPECT_FALSE(completion(body)) << body;
  }
}

TEST(ParseCompletion, HoldsEveryIdToTheVocabulary) {
  EXPECT_TRUE(completion(R"({"prompt": [271]})"));
  for (const char* id : {"-1", "272", "2147483648", "5279552648203111001", "9223372036854775807"}) {
    const std::string value = id;
    EXPECT_FALSE(completion(R"({"prompt": [)" + value + "]}")) << id;
    EXPECT_FALSE(completion(R"({"prompt": [65], "stop_token_ids": [)" + value + "]}")) << id;
    EXPECT_FALSE(completion(R"({"prompt": [65], "allowed_token_ids": [)" + value + "]}")) << id;
    EXPECT_FALSE(completion(R"({"prompt": [65], "logit_bias": {")" + value + R"(": 1}})")) << id;
  }
  EXPECT_EQ(completion(R"({"prompt": [272]})").error().message(),
            "Token id 272 is out of vocabulary");
}

TEST(ParseCompletion, MaxTokensFollowsItsRules) {
  const auto with = [](const std::string& value) {
    return completion(R"({"prompt": [65], "max_tokens": )" + value + "}");
  };

  EXPECT_EQ(with("null")->sampling.max_tokens, 16u);
  EXPECT_EQ(with("5")->sampling.max_tokens, 5u);
  EXPECT_EQ(with("5.0")->sampling.max_tokens, 5u);
  EXPECT_EQ(with("\"5\"")->sampling.max_tokens, 5u);
  EXPECT_EQ(with("0").error().message(),
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)");
  EXPECT_EQ(with("\"four\"").error().param(), "body.max_tokens");
  for (const char* bad : {"-1", "1.5", "1e12", "64", "true", "[]"}) EXPECT_FALSE(with(bad)) << bad;
}

TEST(ParseCompletion, TheDefaultOfMaxTokensFitsTheRoomThatIsLeft) {
  std::string ids = "1";
  for (int i = 1; i < 60; ++i) ids += ",1";

  EXPECT_EQ(completion(R"({"prompt": [)" + ids + "]}")->sampling.max_tokens, 4u);
  EXPECT_EQ(completion(R"({"prompt": [)" + ids + ",1,1,1,1]}").error().param(), "input_tokens");
}

TEST(ParseCompletion, EchoWithoutNewTokensAsksForThePromptAlone) {
  const auto request =
      completion(R"({"prompt": [65, 66], "max_tokens": 0, "echo": true, "logprobs": 1})");

  ASSERT_TRUE(request) << refusal(request);
  EXPECT_TRUE(request->prompt_only);
  EXPECT_EQ(request->sampling.prompt_logprobs, 1u);
}

TEST(ParseCompletion, RefusesParametersOutOfRange) {
  EXPECT_EQ(completion(R"({"prompt": [65], "temperature": -1})").error().message(),
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)");
  for (const char* part : {R"("top_p": 2)",
                           R"("top_p": 0)",
                           R"("min_p": -0.1)",
                           R"("top_k": -2)",
                           R"("n": 0)",
                           R"("n": 100000)",
                           R"("presence_penalty": 3)",
                           R"("repetition_penalty": 0)",
                           R"("logprobs": 21)",
                           R"("logprobs": -1)",
                           R"("min_tokens": -1)",
                           R"("min_tokens": 17)",
                           R"("stop": [""])",
                           R"("stop": 5)",
                           R"("seed": 1.5)",
                           R"("temperature": "nan")",
                           R"("allowed_token_ids": [])",
                           R"("logit_bias": {"a": 1})",
                           R"("logit_bias": [])",
                           R"("suffix": "x")",
                           R"("bad_words": ["x"])",
                           R"("cache_salt": "")",
                           R"("stream_options": {})",
                           R"("response_format": {"type": "json_object"})",
                           R"("use_beam_search": true)"}) {
    EXPECT_FALSE(completion(R"({"prompt": [65], )" + std::string(part) + "}")) << part;
  }
}

TEST(ParseCompletion, SaysWhichWeightsMayAnswer) {
  const auto request =
      completion(R"({"prompt": [65], "on_update": "recompute", "min_version": "step-3"})");

  ASSERT_TRUE(request) << refusal(request);
  EXPECT_EQ(request->on_update, OnUpdate::kRecompute);
  EXPECT_EQ(request->min_version, "step-3");
  EXPECT_FALSE(completion(R"({"prompt": [65]})")->on_update);
  EXPECT_EQ(completion(R"({"prompt": [65], "on_update": "drain"})").error().param(),
            "body.on_update");
  EXPECT_EQ(completion(R"({"prompt": [65], "min_version": 3})").error().param(),
            "body.min_version");
}

TEST(ParseCompletion, AnotherModelIsNotFound) {
  const auto request = completion(R"({"prompt": [65], "model": "other"})");

  EXPECT_EQ(request.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(request.error().message(), "The model `other` does not exist. Valid aliases: m.");
}

TEST(ParseCompletion, TextNeedsATokenizer) {
  EXPECT_FALSE(completion(R"({"prompt": "A"})"));
}

TEST(ParseGenerate, TakesTheRestOfTheContextByDefault) {
  const auto parse = [](const char* body) {
    return parse_generate(json::parse(body).as_object(), id_model());
  };

  EXPECT_EQ(parse(R"({"token_ids": [1, 2], "sampling_params": {}})")->sampling.max_tokens, 62u);
  EXPECT_EQ(parse(R"({"token_ids": [1, 2], "sampling_params": {"max_tokens": 1000}})")
                ->sampling.max_tokens,
            62u);
  EXPECT_EQ(parse(R"({"token_ids": [1]})").error().param(), "body.sampling_params");
  EXPECT_EQ(parse(R"({"sampling_params": {}})").error().param(), "body.token_ids");
  EXPECT_FALSE(parse(R"({"token_ids": [], "sampling_params": {}})"));
}

TEST(ParseChat, WithoutATemplateItIsRefused) {
  const auto parse = [](const char* body) {
    return parse_chat(json::parse(body).as_object(), id_model());
  };

  EXPECT_EQ(parse(R"({})").error().param(), "body.messages");
  EXPECT_FALSE(parse(R"({"messages": []})"));
  EXPECT_FALSE(parse(R"({"messages": [{"role": "user", "content": "hi"}]})"));
}

TEST(ParseJsonBody, WantsJsonCalledJson) {
  EXPECT_TRUE(parse_json_body("application/json; charset=utf-8", "{}"));
  EXPECT_EQ(parse_json_body("text/plain", "{}").error().param(), "body");
  EXPECT_FALSE(parse_json_body("application/json", "{"));
  EXPECT_FALSE(parse_json_body("application/json", "[]"));
  EXPECT_FALSE(parse_json_body("application/json", R"({"a": 1, "a": 2})"));
}

// ---- control requests ----

TEST(ParsePause, KnowsVllmsModesAndFlags) {
  EXPECT_EQ(parse_pause(http::Request())->mode, PauseMode::kAbort);
  EXPECT_TRUE(parse_pause(http::Request())->clear_cache);
  EXPECT_EQ(parse_pause(query("mode", "keep"))->mode, PauseMode::kKeep);
  EXPECT_EQ(parse_pause(query("wait_for_inflight_requests", "True"))->mode, PauseMode::kWait);
  EXPECT_FALSE(parse_pause(query("clear_cache", "no"))->clear_cache);
  EXPECT_EQ(parse_pause(query("mode", "bogus")).error().param(), "query.mode");
  EXPECT_EQ(parse_pause(query("mode", "")).error().param(), "query.mode");
  EXPECT_EQ(parse_pause(query("clear_cache", "junk")).error().param(), "query.clear_cache");
}

TEST(ParseInit, SaysWhatIsAccepted) {
  EXPECT_TRUE(parse_init(post(R"({"init_info": {}, "more": 1})")));
  EXPECT_TRUE(parse_init(post(R"({"init_info": {"packed": true}})")));
  const auto nccl = parse_init(post(R"({"init_info": {"master_address": "a", "master_port": 1}})"));
  EXPECT_EQ(nccl.error().param(), "body.init_info.master_address");
  EXPECT_NE(nccl.error().message().find("/weft/v1/weights"), std::string::npos);
  for (const char* body : {"", "{}", "[]", R"({"init_info": null})"}) {
    EXPECT_EQ(parse_init(post(body)).error().param(), "body.init_info") << body;
  }
  EXPECT_FALSE(parse_init(post(R"({"init_info": "x"})")));
  EXPECT_FALSE(parse_init(post("{oops")));
  EXPECT_FALSE(parse_init(post(R"({"init_info": {}})", "text/plain")));
}

TEST(ParseUpdate, KnowsItsForms) {
  EXPECT_FALSE(parse_update(post(R"({"update_info": {}})"))->path);
  EXPECT_EQ(parse_update(post(R"({"update_info": {"path": "a", "packed": true}})"))->path, "a");
  EXPECT_EQ(parse_update(post(R"({"update_info": [{"path": "a"}]})"))->path, "a");
  EXPECT_FALSE(parse_update(post(R"({"update_info": [null]})"))->path);
  EXPECT_TRUE(parse_update(post(R"({"weight_dir": "d"})"))->whole);
  const auto pull = parse_update(post(R"({"update_info": {"version": "v", "source": "u"}})"))->pull;
  EXPECT_EQ(pull->version, "v");
  EXPECT_EQ(pull->source, "u");
}

TEST(AllowedSource, IsAPrefixThatEndsWhereAPathGoesOn) {
  const std::vector<std::string> prefixes = {"http://store:80", "https://cdn/models/"};
  for (const char* const good :
       {"http://store:80", "http://store:80/", "http://store:80/a", "https://cdn/models/x"}) {
    EXPECT_TRUE(is_allowed_source(good, prefixes)) << good;
  }
  for (const char* const bad : {"", "http://store", "http://store:8000", "http://store:80@evil",
                                "https://cdn/model", "https://evil/http://store:80"}) {
    EXPECT_FALSE(is_allowed_source(bad, prefixes)) << bad;
  }
  EXPECT_FALSE(is_allowed_source("http://store", {}));
}

TEST(ParseUpdate, RefusesTheRest) {
  for (const char* body :
       {"", "[1,", "{}", R"({"update_info": null})", R"({"update_info": "x"})",
        R"({"update_info": 3})", R"({"update_info": {"bogus": 1}})", R"({"update_info": []})",
        R"({"update_info": [{}, {}]})", R"({"update_info": {"ipc_handles_pickled": "gASV"}})",
        R"({"update_info": {"version": "v"}})", R"({"update_info": {"source": "u"}})",
        R"({"update_info": {"version": "v", "source": "u", "path": "p"}})",
        R"({"update_info": {"path": 5}})", R"({"weight_dir": null})"}) {
    const auto update = parse_update(post(body));
    ASSERT_FALSE(update) << body;
    EXPECT_EQ(update.error().code(), ErrorCode::kInvalidArgument) << body;
  }
}

TEST(ParseFinish, TakesALabelOrNothing) {
  EXPECT_EQ(parse_finish(post(R"({"weight_version": "v1"})"))->label, "v1");
  EXPECT_EQ(parse_finish(post(R"({"weight_version": ""})"))->label, "");
  EXPECT_EQ(parse_finish(post(R"({"on_update": "finish"})"))->on_update, OnUpdate::kFinish);
  EXPECT_EQ(parse_finish(post(R"({"on_update": "drop"})")).error().param(), "body.on_update");
  for (const char* body : {"", "{}", "null", R"({"weight_version": null})"}) {
    EXPECT_FALSE(parse_finish(post(body))->label) << body;
    EXPECT_FALSE(parse_finish(post(body))->on_update) << body;
  }
  EXPECT_EQ(parse_finish(post("[]")).error().param(), "body.weight_version");
  EXPECT_EQ(parse_finish(post(R"({"weight_version": 7})")).error().param(), "body.weight_version");
  EXPECT_FALSE(parse_finish(post("{")));
}

TEST(ParseChecker, ComparesWithABaseline) {
  EXPECT_EQ(
      parse_checker(post(R"({"action": "compare", "baseline": {"a": "b"}})"))->baseline.at("a"),
      "b");
  EXPECT_EQ(parse_checker(post(R"({"action": "compare"})")).error().param(), "body");
  EXPECT_EQ(parse_checker(post(R"({"action": "zap"})")).error().param(), "body.action");
  EXPECT_EQ(parse_checker(post("{}")).error().param(), "body.action");
}

TEST(ParseAbort, WantsAnObject) {
  EXPECT_TRUE(parse_abort(post("{}"))->empty());
  EXPECT_EQ(parse_abort(post(R"({"request_ids": ["a", "b"]})"))->size(), 2u);
  EXPECT_EQ(parse_abort(post("")).error().message(), "Invalid JSON format");
  EXPECT_EQ(parse_abort(post("[]")).error().message(), "Request body must be a JSON object");
}

// ---- min_version ----

TEST(VersionHistory, KnowsIdsAndLabelsThatWerePassed) {
  VersionHistory history;
  history.add({"blake3:1", "default", false});
  history.add({"blake3:1", "step-1", false});
  history.add({"blake3:2", "step-2", false});

  for (const char* const passed : {"blake3:1", "default", "step-1", "blake3:2", "step-2"}) {
    EXPECT_TRUE(history.check(passed)) << passed;
  }
  const auto behind = history.check("step-3");
  EXPECT_EQ(behind.error().code(), ErrorCode::kConflict);
  EXPECT_EQ(behind.error().message(),
            "min_version step-3 has not been reached here: step-2 (blake3:2) is served");
}

TEST(VersionHistory, ARollbackIsBehindWhatItLeft) {
  VersionHistory history;
  for (const char* const name : {"1", "2", "3"}) history.add({name, name, false});
  history.go_back({"2", "2", false});

  EXPECT_TRUE(history.check("1"));
  EXPECT_TRUE(history.check("2"));
  EXPECT_FALSE(history.check("3"));
  history.add({"3", "3", false});
  EXPECT_TRUE(history.check("3"));
}

TEST(VersionHistory, ContentThatComesAgainIsTheNewest) {
  VersionHistory history;
  history.add({"1", "step-1", false});
  history.add({"2", "step-2", false});
  history.add({"1", "step-3", false});
  for (const char* const passed : {"1", "2", "step-1", "step-2", "step-3"}) {
    EXPECT_TRUE(history.check(passed)) << passed;
  }

  history.go_back({"2", "step-2", false});
  EXPECT_TRUE(history.check("1"));
  EXPECT_TRUE(history.check("step-2"));
  EXPECT_FALSE(history.check("step-3"));
  history.go_back({"1", "step-1", false});
  EXPECT_FALSE(history.check("2"));
}

TEST(VersionHistory, ForgetsTheOldest) {
  VersionHistory history;
  for (std::size_t i = 0; i <= VersionHistory::kRemembered; ++i) {
    history.add({std::to_string(i), "", false});
  }

  EXPECT_FALSE(history.check("0"));
  EXPECT_TRUE(history.check("1"));
}

// ---- stop strings ----

std::string through(StopFilter filter, std::vector<std::string> pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += filter.push(piece, true) + "|";
  return text + filter.finish();
}

TEST(StopFilter, FindsAStopAcrossPiecesAndShowsNoneOfIt) {
  EXPECT_EQ(through({{"DEF"}, false}, {"B", "C", "D", "E", "F", "G"}),
            "B|C||||"
            "|");
  EXPECT_EQ(through({{"DEF"}, true}, {"BCD", "EFG"}), "BC|DEF|");
}

TEST(StopFilter, GivesBackWhatWasNoStop) {
  EXPECT_EQ(through({{"DEFX"}, false}, {"B", "D", "E", "F"}), "B||||DEF");
  EXPECT_EQ(through({{"aab"}, false}, {"aa", "a", "b", "c"}), "|a|||");
}

TEST(StopFilter, TheStopThatCompletesFirstCounts) {
  EXPECT_EQ(through({{"EF", "DEFG"}, false}, {"B", "C", "D", "E", "F", "G"}), "B|C|||D||");
}

TEST(StopFilter, IgnoresAStopThatEndsTooEarly) {
  StopFilter filter({"AB"}, false);

  EXPECT_EQ(filter.push("xAB", false), "xAB");
  EXPECT_EQ(filter.push("A", true), "");
  EXPECT_EQ(filter.push("B", true), "");
  EXPECT_EQ(filter.matched(), "AB");
}

// ---- answers ----

TokenEvent token(std::uint32_t id, float logprob, std::shared_ptr<const VersionName> version) {
  TokenEvent event;
  event.token = id;
  event.scored.chosen = {id, logprob, 1};
  event.version = std::move(version);
  return event;
}

std::shared_ptr<const VersionName> version(std::string label, std::string id) {
  return std::make_shared<const VersionName>(VersionName{std::move(id), std::move(label), false});
}

FinishEvent finish(FinishReason reason) {
  FinishEvent event;
  event.reason = reason;
  return event;
}

GenerationRequest generate_request() {
  GenerationRequest request;
  request.api = Api::kGenerate;
  request.prompts.push_back({{1, 2}, std::nullopt});
  request.sampling.logprobs = 0;
  return request;
}

TEST(RenderAnswer, LogProbabilitiesComeBackBitForBit) {
  const ServedModel model = id_model();
  const GenerationRequest request = generate_request();
  std::vector<SequenceOutput> outputs;
  outputs.emplace_back(request, request.prompts[0], model);
  const std::vector<float> values = {
      -1e-7f, -0.1f, -11.217305f, -3.4e-38f, -103.27893f, -0.0f, std::nextafter(-0.5f, -1.0f)};
  for (const float value : values) outputs[0].add_token(token(5, value, version("a", "x")));
  outputs[0].finish(finish(FinishReason::kLength));

  const auto answer = json::parse(render_answer(request, model, {"id", 0}, outputs));

  const auto& content = answer.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto read = static_cast<float>(content[i].at("logprob").to_number<double>());
    EXPECT_EQ(std::memcmp(&read, &values[i], sizeof(float)), 0) << values[i];
  }
}

TEST(RenderAnswer, IsJsonWhateverTheLogProbabilities) {
  const ServedModel model = id_model();
  const GenerationRequest request = generate_request();
  std::vector<SequenceOutput> outputs;
  outputs.emplace_back(request, request.prompts[0], model);
  outputs[0].add_token(token(5, -std::numeric_limits<float>::infinity(), version("a", "x")));
  outputs[0].add_token(token(5, std::numeric_limits<float>::quiet_NaN(), version("a", "x")));
  outputs[0].finish(finish(FinishReason::kLength));

  const auto answer = json::parse(render_answer(request, model, {"id", 0}, outputs));

  const auto& content = answer.at("choices").at(0).at("logprobs").at("content").as_array();
  EXPECT_EQ(content.at(0).at("logprob").to_number<double>(), -9999.0);
  EXPECT_TRUE(content.at(1).at("logprob").is_null());
}

TEST(RenderAnswer, SaysWhichVersionMadeWhichTokens) {
  const ServedModel model = id_model();
  const GenerationRequest request = generate_request();
  std::vector<SequenceOutput> outputs;
  outputs.emplace_back(request, request.prompts[0], model);
  outputs[0].add_token(token(5, 0, version("a", "x")));
  outputs[0].add_token(token(5, 0, version("a", "x")));
  outputs[0].add_token(token(5, 0, version("b", "y")));
  outputs[0].finish(finish(FinishReason::kAbort));

  const auto answer = json::parse(render_answer(request, model, {"id", 0}, outputs));

  EXPECT_EQ(
      json::serialize(answer.at("choices").at(0).at("weight_versions")),
      R"([{"version":"a","start":0,"end":2,"id":"x"},{"version":"b","start":2,"end":3,"id":"y"}])");
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "abort");
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 3);
}

TEST(RenderEvents, EachTokenIsStreamedOnceAndTheSpansComeLast) {
  const ServedModel model = id_model();
  const GenerationRequest request = generate_request();
  std::vector<SequenceOutput> outputs;
  outputs.emplace_back(request, request.prompts[0], model);
  StreamCursor cursor;
  outputs[0].add_token(token(5, 0, version("a", "x")));
  const std::string first = render_events(request, model, {"id", 0}, outputs, 0, cursor);
  const std::string nothing = render_events(request, model, {"id", 0}, outputs, 0, cursor);
  outputs[0].add_token(token(6, 0, version("a", "x")));
  outputs[0].finish(finish(FinishReason::kLength));
  const std::string last = render_events(request, model, {"id", 0}, outputs, 0, cursor);

  EXPECT_EQ(nothing, "");
  ASSERT_TRUE(first.starts_with("data: ") && first.ends_with("\n\n"));
  const auto opening = json::parse(first.substr(6)).at("choices").at(0);
  EXPECT_EQ(json::serialize(opening.at("token_ids")), "[5]");
  EXPECT_TRUE(opening.at("finish_reason").is_null());
  EXPECT_TRUE(opening.at("weight_versions").is_null());
  const auto ending = json::parse(last.substr(6)).at("choices").at(0);
  EXPECT_EQ(json::serialize(ending.at("token_ids")), "[6]");
  EXPECT_EQ(ending.at("weight_versions").as_array().size(), 1u);
  EXPECT_EQ(render_stream_end(request, model, {"id", 0}, outputs), "data: [DONE]\n\n");
}

TEST(ApiErrorResponse, TellsVllmsTwoKindsOf400Apart) {
  const auto shape = [](const Error& error) {
    const auto body = json::parse(api_error_response(error).body).at("error");
    return json::serialize(json::array{body.at("type"), body.at("param"), body.at("code")});
  };

  EXPECT_EQ(shape(missing_field_error("body.messages")), R"(["Bad Request","body.messages",400])");
  EXPECT_EQ(shape(body_error("Invalid JSON format")), R"(["Bad Request",null,400])");
  EXPECT_EQ(shape(parameter_error("n", "0", "must be at least 1")),
            R"(["BadRequestError","n",400])");
  EXPECT_EQ(shape(Error(ErrorCode::kConflict, "busy")), R"(["ConflictError",null,409])");
}

TEST(RenderMetrics, EscapesLabels) {
  Metrics metrics;
  metrics.model_name = "a\"b";
  metrics.version = {"x", "l\nm", false};

  const std::string page = render_metrics(metrics);

  EXPECT_NE(page.find("vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b\"} 0\n"),
            std::string::npos);
  EXPECT_NE(page.find("label=\"l\\nm\""), std::string::npos);
}

// First and second group of all that match.
std::map<std::string, std::string> names_in(const std::string& text, const std::regex& line) {
  std::map<std::string, std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at) {
    names.emplace((*at)[1], (*at)[2]);
  }
  return names;
}

TEST(RenderMetrics, HasWhatTheDocumentHasAndNothingElse) {
  Metrics metrics;
  metrics.server.version_lag = 0;
  const std::string document = blocking_read_file(source_dir() / "docs/metrics.md").value();

  const auto rendered =
      names_in(render_metrics(metrics), std::regex(R"((?:^|\n)# TYPE (\S+) (\S+))"));
  const auto documented = names_in(document, std::regex(R"(\n\| `([a-z_:]+)` \| (\w+))"));

  EXPECT_EQ(rendered, documented);
  EXPECT_FALSE(rendered.empty());
}

TEST(RenderMetrics, CountsSequencesByVersionAndUpdatesByWhatBecameOfThem) {
  Metrics metrics;
  metrics.version = {"blake3:b", "two", false};
  metrics.engine.running = 5;
  metrics.engine.on_retired = 2;
  metrics.engine.retired = version("one", "blake3:a");
  metrics.server.updates.committed = 3;
  metrics.server.updates.add(UpdateStage::kVerify, 0.5);
  metrics.server.updates.refusals["corrupt"] = 4;

  const std::string page = render_metrics(metrics);

  for (const char* const line : {"id=\"blake3:b\",label=\"two\"} 3\n",
                                 "id=\"blake3:a\",label=\"one\"} 2\n", "result=\"committed\"} 3\n",
                                 "seconds_sum{engine=\"0\",model_name=\"\",stage=\"verify\"} 0.5\n",
                                 "reason=\"corrupt\"} 4\n"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line << page;
  }
  EXPECT_EQ(page.find("version_lag"), std::string::npos);
}

}  // namespace
}  // namespace weft
