#include "weft/trainer/rollout.h"

#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/base/log.h"
#include "weft/format/json.h"

namespace weft {
namespace {

Error bad_answer(std::string_view field, std::string_view expected) {
  return Error(ErrorCode::kCorrupt,
               fmt::format("the answer to /inference/v1/generate: {} must be {}", field, expected));
}

// The element of a JSON object as an array; nothing if it is not there or another thing.
const boost::json::array* try_array(const boost::json::value& value, std::string_view name) {
  const auto* object = value.if_object();
  const auto* member = object == nullptr ? nullptr : object->if_contains(name);
  return member == nullptr ? nullptr : member->if_array();
}

template <typename T>
std::optional<T> try_number(const boost::json::value& value) {
  boost::system::error_code error;
  const T number = value.to_number<T>(error);
  return error ? std::nullopt : std::optional<T>(number);
}

template <typename T>
std::optional<T> try_number(const boost::json::value& value, std::string_view name) {
  const auto* object = value.if_object();
  const auto* member = object == nullptr ? nullptr : object->if_contains(name);
  return member == nullptr ? std::nullopt : try_number<T>(*member);
}

Result<std::vector<VersionSpan>> parse_spans(const boost::json::value& choice, std::size_t tokens) {
  std::vector<VersionSpan> spans;
  std::size_t covered = 0;
  const auto* items = try_array(choice, "weight_versions");
  if (items != nullptr) {
    for (const boost::json::value& item : *items) {
      const auto begin = try_number<std::uint64_t>(item, "start");
      const auto end = try_number<std::uint64_t>(item, "end");
      const auto* object = item.if_object();
      const auto* label = object == nullptr ? nullptr : object->if_contains("version");
      if (label == nullptr || !label->is_string() || begin != covered || !end || *end <= *begin)
        break;
      covered = *end;
      spans.push_back({std::string(label->get_string()), *begin, *end});
    }
  }
  if (covered != tokens)
    return bad_answer("weight_versions", "spans that cover all tokens in order");
  return spans;
}

Result<Rollout> parse_choice(const boost::json::value& choice, std::uint64_t vocab_size) {
  Rollout rollout;
  const auto* ids = try_array(choice, "token_ids");
  if (ids == nullptr || ids->empty()) return bad_answer("token_ids", "a list of at least one id");
  for (const boost::json::value& id : *ids) {
    const auto number = try_number<std::uint32_t>(id);
    if (!number || *number >= vocab_size) {
      return bad_answer("token_ids", fmt::format("ids below {}", vocab_size));
    }
    rollout.tokens.push_back(*number);
  }
  const auto* logprobs = choice.as_object().if_contains("logprobs");
  const auto* content = logprobs == nullptr ? nullptr : try_array(*logprobs, "content");
  if (content == nullptr || content->size() != ids->size()) {
    return bad_answer("logprobs.content", "one entry for each token");
  }
  for (const boost::json::value& entry : *content) {
    const auto logprob = try_number<double>(entry, "logprob");
    if (!logprob) return bad_answer("logprob", "a number");
    rollout.logprobs.push_back(static_cast<float>(*logprob));
  }
  WEFT_TRY(rollout.versions, parse_spans(choice, ids->size()));
  const auto* reason = choice.as_object().if_contains("finish_reason");
  if (reason == nullptr || (*reason != "stop" && *reason != "length")) {
    return bad_answer("finish_reason", "stop or length");
  }
  rollout.ended = *reason == "stop";
  return rollout;
}

}  // namespace

http::Request make_rollout_request(const RolloutRequest& request) {
  const boost::json::value body = {
      {"token_ids", boost::json::array(request.prompt.begin(), request.prompt.end())},
      {"sampling_params",
       {{"n", request.count},
        {"temperature", request.temperature},
        {"max_tokens", request.max_tokens},
        {"seed", request.seed},
        {"logprobs", 0}}}};
  http::Request message;
  message.method = "POST";
  message.target = "/inference/v1/generate";
  message.headers = {{"Content-Type", "application/json"}};
  message.body = boost::json::serialize(body);
  return message;
}

Result<std::vector<Rollout>> parse_rollouts(const http::Response& response, std::uint64_t count,
                                            std::uint64_t vocab_size) {
  if (response.status != 200) return http::error_of_response(response);
  WEFT_TRY(const boost::json::value root, parse_json(response.body));
  const auto* choices = try_array(root, "choices");
  if (choices == nullptr || choices->size() != count) {
    return bad_answer("choices", fmt::format("a list of {}", count));
  }
  std::vector<Rollout> rollouts;
  for (const boost::json::value& choice : *choices) {
    WEFT_TRY(rollouts.emplace_back(), parse_choice(choice, vocab_size));
  }
  return rollouts;
}

}  // namespace weft
