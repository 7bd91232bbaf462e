#include "weft/serving/generation_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/serving/api_error.h"
#include "weft/serving/fields.h"

namespace weft {
namespace json = boost::json;
namespace {

Error bad_request(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

// Fields that would change the result and are not implemented: refused rather than ignored.
constexpr std::array<std::string_view, 12> kRefusedFields = {"suffix",
                                                             "prompt_embeds",
                                                             "use_beam_search",
                                                             "bad_words",
                                                             "structured_outputs",
                                                             "guided_json",
                                                             "guided_regex",
                                                             "guided_choice",
                                                             "guided_grammar",
                                                             "logprob_token_ids",
                                                             "truncate_prompt_tokens",
                                                             "continue_final_message"};

bool asks_for_something(const json::value& value) {
  if (value.is_bool()) return value.get_bool();
  if (value.is_string()) return !value.get_string().empty();
  if (value.is_array()) return !value.get_array().empty();
  if (value.is_object()) return !value.get_object().empty();
  return !value.is_null();
}

Result<void> refuse_unsupported(const Fields& fields) {
  for (const std::string_view name : kRefusedFields) {
    const json::value* value = fields.try_find(name);
    if (value != nullptr && asks_for_something(*value)) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("`{}` is not supported here", name),
                   std::string(name));
    }
  }
  WEFT_TRY(const json::object* format, fields.try_object("response_format"));
  if (format != nullptr && (!format->contains("type") || format->at("type") != "text")) {
    return Error(ErrorCode::kInvalidArgument,
                 "`response_format` other than text is not supported here", "response_format");
  }
  return {};
}

Result<void> check_model(const Fields& fields, const ServedModel& model) {
  WEFT_TRY(const auto name, fields.text("model"));
  if (!name || name->empty() || *name == model.name) return {};
  return Error(ErrorCode::kNotFound,
               fmt::format("The model `{}` does not exist. Valid aliases: {}.", *name, model.name),
               "model");
}

Result<std::uint32_t> checked_id(std::int64_t id, const ServedModel& model,
                                 std::string_view param) {
  if (id >= 0 && static_cast<std::uint64_t>(id) < model.vocab_size)
    return static_cast<std::uint32_t>(id);
  return Error(ErrorCode::kInvalidArgument, fmt::format("Token id {} is out of vocabulary", id),
               std::string(param));
}

Result<std::vector<std::uint32_t>> checked_ids(const std::vector<std::int64_t>& ids,
                                               const ServedModel& model, std::string_view param) {
  std::vector<std::uint32_t> checked;
  checked.reserve(ids.size());
  for (const std::int64_t id : ids) {
    WEFT_TRY(const std::uint32_t good, checked_id(id, model, param));
    checked.push_back(good);
  }
  return checked;
}

// Numbers with a range. Shown as vLLM shows them: -1.0 and not -1.
Result<double> number_in(const Fields& fields, std::string_view name, double otherwise,
                         auto is_good, std::string_view reason) {
  WEFT_TRY(const double value, fields.number(name, otherwise));
  if (is_good(value)) return value;
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return parameter_error(name, whole ? fmt::format("{:.1f}", value) : fmt::format("{}", value),
                         reason);
}

Result<void> parse_filters(const Fields& fields, SamplingParams& out) {
  WEFT_TRY(out.temperature, number_in(
                                fields, "temperature", 1.0, [](double x) { return x >= 0; },
                                "must be non-negative"));
  WEFT_TRY(out.top_p, number_in(
                          fields, "top_p", 1.0, [](double x) { return x > 0 && x <= 1; },
                          "must be in (0, 1]"));
  WEFT_TRY(out.min_p, number_in(
                          fields, "min_p", 0.0, [](double x) { return x >= 0 && x <= 1; },
                          "must be in [0, 1]"));
  const auto is_penalty = [](double x) { return x >= -2 && x <= 2; };
  WEFT_TRY(out.presence_penalty,
           number_in(fields, "presence_penalty", 0.0, is_penalty, "must be in [-2, 2]"));
  WEFT_TRY(out.frequency_penalty,
           number_in(fields, "frequency_penalty", 0.0, is_penalty, "must be in [-2, 2]"));
  WEFT_TRY(out.repetition_penalty,
           number_in(
               fields, "repetition_penalty", 1.0, [](double x) { return x > 0; },
               "must be greater than zero"));
  WEFT_TRY(out.top_k, fields.integer("top_k", 0));
  if (out.top_k < -1) {
    return parameter_error("top_k", std::to_string(out.top_k),
                           "must be 0 or -1 (all), or at least 1");
  }
  WEFT_TRY(const auto seed, fields.integer("seed"));
  if (seed && *seed != -1) out.seed = static_cast<std::uint64_t>(*seed);
  return {};
}

Result<void> parse_logit_bias(const Fields& fields, const ServedModel& model, SamplingParams& out) {
  constexpr double kLargestBias = 100.0;  // Source: OpenAI's API reference
  WEFT_TRY(const json::object* biases, fields.try_object("logit_bias"));
  if (biases == nullptr) return {};
  const Fields values(*biases, "body.logit_bias");
  for (const auto& [key, value] : *biases) {
    std::int64_t id = -1;
    const char* const end = key.data() + key.size();
    if (const auto parsed = std::from_chars(key.data(), end, id);
        parsed.ec != std::errc() || parsed.ptr != end) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("logit_bias: `{}` is no token id", std::string_view(key.data(), key.size())),
          "logit_bias");
    }
    WEFT_TRY(const std::uint32_t token, checked_id(id, model, "logit_bias"));
    WEFT_TRY(const auto bias, values.number({key.data(), key.size()}));
    if (bias)
      out.logit_bias.emplace_back(
          token, static_cast<float>(std::clamp(*bias, -kLargestBias, kLargestBias)));
  }
  return {};
}

Result<void> parse_ids_of_sampling(const Fields& fields, const ServedModel& model,
                                   SamplingParams& out) {
  WEFT_TRY(const auto stop_ids, fields.integers("stop_token_ids"));
  if (stop_ids) {
    WEFT_TRY(out.stop_token_ids, checked_ids(*stop_ids, model, "stop_token_ids"));
  }
  WEFT_TRY(const auto allowed, fields.integers("allowed_token_ids"));
  if (allowed && allowed->empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "allowed_token_ids is empty: nothing could be sampled", "allowed_token_ids");
  }
  if (allowed) {
    WEFT_TRY(out.allowed_token_ids, checked_ids(*allowed, model, "allowed_token_ids"));
  }
  WEFT_TRY(out.ignore_eos, fields.flag("ignore_eos", false));
  return parse_logit_bias(fields, model, out);
}

Result<std::optional<std::uint32_t>> parse_top_count(const Fields& fields, std::string_view name) {
  WEFT_TRY(const auto count, fields.integer(name));
  if (!count) return std::optional<std::uint32_t>();
  if (*count < 0 || *count > kMaxTopLogprobs) {
    return parameter_error(name, std::to_string(*count),
                           fmt::format("must be in [0, {}]", kMaxTopLogprobs));
  }
  return std::optional(static_cast<std::uint32_t>(*count));
}

Result<void> parse_text_options(const Fields& fields, GenerationRequest& out) {
  WEFT_TRY(out.stop, fields.texts("stop"));
  if (std::ranges::find(out.stop, "") != out.stop.end()) {
    return Error(ErrorCode::kInvalidArgument, "stop cannot contain an empty string.", "stop");
  }
  WEFT_TRY(out.include_stop_in_output, fields.flag("include_stop_str_in_output", false));
  WEFT_TRY(out.skip_special_tokens, fields.flag("skip_special_tokens", true));
  return {};
}

// `top` is the request, `fields` where its sampling parameters stand.
Result<void> parse_sampling(const Fields& fields, const ServedModel& model,
                            GenerationRequest& out) {
  WEFT_TRY_VOID(refuse_unsupported(fields));
  WEFT_TRY_VOID(parse_filters(fields, out.sampling));
  WEFT_TRY_VOID(parse_ids_of_sampling(fields, model, out.sampling));
  WEFT_TRY_VOID(parse_text_options(fields, out));
  WEFT_TRY(out.sampling.prompt_logprobs, parse_top_count(fields, "prompt_logprobs"));
  WEFT_TRY(const std::int64_t n, fields.integer("n", 1));
  if (n < 1 || static_cast<std::uint64_t>(n) > kMaxSequencesPerRequest) {
    return parameter_error("n", std::to_string(n),
                           fmt::format("must be in [1, {}]", kMaxSequencesPerRequest));
  }
  out.n = static_cast<std::uint32_t>(n);
  WEFT_TRY(const std::int64_t min_tokens, fields.integer("min_tokens", 0));
  if (min_tokens < 0)
    return parameter_error("min_tokens", std::to_string(min_tokens), "must be non-negative");
  out.sampling.min_tokens = static_cast<std::uint64_t>(min_tokens);
  return {};
}

Result<void> parse_streaming(const Fields& fields, GenerationRequest& out) {
  WEFT_TRY(out.stream, fields.flag("stream", false));
  WEFT_TRY(const json::object* options, fields.try_object("stream_options"));
  if (options != nullptr) {
    if (!out.stream) {
      return Error(ErrorCode::kInvalidArgument,
                   "Stream options can only be defined when `stream=True`.", "stream_options");
    }
    const Fields stream_options(*options, "body.stream_options");
    WEFT_TRY(out.include_usage, stream_options.flag("include_usage", false));
    WEFT_TRY(const bool continuous, stream_options.flag("continuous_usage_stats", false));
    out.usage_in_each_event = out.include_usage && continuous;
  }
  if (out.stream && out.sampling.prompt_logprobs && out.api != Api::kGenerate) {
    return Error(ErrorCode::kInvalidArgument,
                 "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs");
  }
  return {};
}

// weft's own: which weights may answer.
Result<void> parse_version_options(const Fields& fields, GenerationRequest& out) {
  WEFT_TRY(out.min_version, fields.text("min_version"));
  WEFT_TRY(out.on_update, parse_on_update(fields));
  return {};
}

Result<void> parse_common(const Fields& fields, GenerationRequest& out) {
  WEFT_TRY(const auto request_id, fields.text("request_id"));
  out.request_id = request_id.value_or("");
  WEFT_TRY(const auto salt, fields.text("cache_salt"));
  if (salt && salt->empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt");
  }
  out.cache_salt = salt.value_or("");
  WEFT_TRY_VOID(parse_version_options(fields, out));
  WEFT_TRY(out.return_token_ids, fields.flag("return_token_ids", false));
  WEFT_TRY(out.tokens_as_ids, fields.flag("return_tokens_as_token_ids", false));
  return parse_streaming(fields, out);
}

// Sets max_tokens (nothing: the rest of the context) and holds prompts and it to the model's
// length. With `clip`, more than there is room for means all there is.
Result<void> apply_length(std::optional<std::int64_t> max_tokens, bool clip,
                          const ServedModel& model, GenerationRequest& out) {
  const std::uint64_t limit = model.max_model_len;
  if (max_tokens && *max_tokens < 1) {
    return parameter_error("max_tokens", std::to_string(*max_tokens), "must be at least 1");
  }
  std::uint64_t longest = 0;
  for (const Prompt& prompt : out.prompts) {
    if (prompt.ids.empty())
      return bad_request("The prompt is empty: it must have at least one token");
    longest = std::max<std::uint64_t>(longest, prompt.ids.size());
  }
  if (longest >= limit) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "This model's maximum context length is {} tokens. However, your prompt contains {} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce "
            "the length of the input prompt. (parameter=input_tokens, value={})",
            limit, longest, longest),
        "input_tokens");
  }
  const std::uint64_t room = limit - longest;
  const std::uint64_t wanted = max_tokens ? static_cast<std::uint64_t>(*max_tokens) : room;
  if (wanted > room && !clip) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("max_tokens={} with a prompt of {} tokens is more than "
                             "max_model_len={}. Please request "
                             "fewer output tokens. (parameter=max_tokens, value={})",
                             wanted, longest, limit, wanted),
                 "max_tokens");
  }
  out.sampling.max_tokens = std::min(wanted, room);
  if (out.sampling.min_tokens > out.sampling.max_tokens) {
    return parameter_error(
        "min_tokens", std::to_string(out.sampling.min_tokens),
        fmt::format("must be less than or equal to max_tokens={}", out.sampling.max_tokens));
  }
  return {};
}

Result<Prompt> prompt_of_ids(const json::array& array, const ServedModel& model,
                             std::string_view place) {
  Prompt prompt;
  prompt.ids.reserve(array.size());
  for (const json::value& item : array) {
    WEFT_TRY(const std::int64_t id,
             read_integer(item, fmt::format("{}.{}", place, prompt.ids.size())));
    WEFT_TRY(const std::uint32_t checked, checked_id(id, model, ""));
    prompt.ids.push_back(checked);
  }
  return prompt;
}

Result<Prompt> prompt_of_text(const json::string& text, const ServedModel& model,
                              bool add_special_tokens) {
  Prompt prompt;
  prompt.text = std::string(text.data(), text.size());
  WEFT_TRY(prompt.ids, model.encode(*prompt.text, add_special_tokens));
  return prompt;
}

// A text, a list of texts, a list of ids, a list of lists of ids.
Result<std::vector<Prompt>> parse_prompts(const Fields& fields, const ServedModel& model) {
  std::vector<Prompt> prompts;
  const json::value* value = fields.try_find("prompt");
  if (value == nullptr) {
    return Error(
        ErrorCode::kInvalidArgument,
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
        "prompt");
  }
  WEFT_TRY(const bool add_special_tokens, fields.flag("add_special_tokens", true));
  if (value->is_string()) {
    WEFT_TRY(Prompt prompt, prompt_of_text(value->get_string(), model, add_special_tokens));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (!value->is_array()) {
    return validation_error("list_type", "body.prompt",
                            "Input should be a text, a list of texts, or token ids", shown(*value));
  }
  const json::array& items = value->get_array();
  if (items.empty()) return bad_request("You must pass at least one prompt");
  if (!items.front().is_number() && items.size() > kMaxSequencesPerRequest) {
    return bad_request(fmt::format("{} prompts are more than {} sequences", items.size(),
                                   kMaxSequencesPerRequest));
  }
  if (!items.front().is_string() && !items.front().is_array()) {
    WEFT_TRY(Prompt prompt, prompt_of_ids(items, model, "body.prompt"));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  for (const json::value& item : items) {
    const std::string place = fmt::format("body.prompt.{}", prompts.size());
    if (item.kind() != items.front().kind()) {
      return validation_error("list_type", place,
                              "Input should be of the same type as the first prompt", shown(item));
    }
    WEFT_TRY(Prompt prompt, item.is_string()
                                ? prompt_of_text(item.get_string(), model, add_special_tokens)
                                : prompt_of_ids(item.get_array(), model, place));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// A message's content as the template gets it: a list of text parts becomes one text, as vLLM does
// for templates that expect a string.
Result<json::value> flat_content(const json::value& content) {
  if (!content.is_array()) return content;
  std::string text;
  for (const json::value& part : content.get_array()) {
    const json::object* object = part.if_object();
    const json::value* words = object == nullptr ? nullptr : object->if_contains("text");
    if (words == nullptr || !words->is_string()) {
      return bad_request(
          "messages: only text parts are supported, this model takes no images or audio");
    }
    if (!text.empty()) text += '\n';
    text.append(words->get_string().data(), words->get_string().size());
  }
  return json::value(text);
}

Result<json::array> parse_messages(const Fields& fields) {
  const json::value* value = fields.try_find("messages");
  if (value == nullptr) return missing_field_error("body.messages");
  if (!value->is_array()) {
    return validation_error("list_type", "body.messages", "Input should be a valid list",
                            shown(*value));
  }
  json::array messages = value->get_array();
  if (messages.empty()) {
    return bad_request(
        "Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
  for (json::value& message : messages) {
    json::object* object = message.if_object();
    const json::value* role = object == nullptr ? nullptr : object->if_contains("role");
    if (role == nullptr || !role->is_string()) {
      return validation_error("missing", "body.messages", "A message is an object with a role",
                              shown(message));
    }
    if (json::value* content = object->if_contains("content"); content != nullptr) {
      WEFT_TRY(*content, flat_content(*content));
    }
  }
  return messages;
}

Result<std::string> render_chat(const Fields& fields, const ServedModel& model) {
  WEFT_TRY(json::array messages, parse_messages(fields));
  if (fields.try_find("chat_template") != nullptr) {
    return bad_request("`chat_template` in a request is not supported: the model's own is used");
  }
  if (model.chat_template == nullptr) {
    return bad_request(
        "this model has no chat template, so chat cannot be served; /v1/completions works");
  }
  WEFT_TRY(const bool add_generation_prompt, fields.flag("add_generation_prompt", true));
  json::object context = {{"messages", std::move(messages)},
                          {"add_generation_prompt", add_generation_prompt},
                          {"bos_token", model.bos_token},
                          {"eos_token", model.eos_token}};
  for (const std::string_view name : {"tools", "documents"}) {
    if (const json::value* value = fields.try_find(name))
      context[{name.data(), name.size()}] = *value;
  }
  WEFT_TRY(const json::object* more, fields.try_object("chat_template_kwargs"));
  if (more != nullptr) {
    for (const auto& [key, value] : *more) context[key] = value;
  }
  return model.chat_template->render(json::serialize(context));
}

Result<Prompt> chat_prompt(const Fields& fields, const ServedModel& model) {
  WEFT_TRY(std::string text, render_chat(fields, model));
  WEFT_TRY(const bool add_special_tokens, fields.flag("add_special_tokens", false));
  Prompt prompt;
  WEFT_TRY(prompt.ids, model.encode(text, add_special_tokens));
  prompt.text = std::move(text);
  return prompt;
}

Result<void> parse_chat_logprobs(const Fields& fields, GenerationRequest& out) {
  WEFT_TRY(const bool wanted, fields.flag("logprobs", false));
  WEFT_TRY(const auto top, parse_top_count(fields, "top_logprobs"));
  if (top && *top > 0 && !wanted) {
    return Error(ErrorCode::kInvalidArgument,
                 "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs");
  }
  if (wanted) out.sampling.logprobs = top.value_or(0);
  return {};
}

// Tool calls are not parsed out of the text, so a client that insists on one is refused.
Result<void> check_tool_choice(const Fields& fields) {
  const json::value* choice = fields.try_find("tool_choice");
  if (choice == nullptr || *choice == "none" || *choice == "auto") return {};
  return Error(ErrorCode::kInvalidArgument,
               "`tool_choice` other than none or auto is not supported here", "tool_choice");
}

}  // namespace

Result<GenerationRequest> parse_completion(const json::object& body, const ServedModel& model) {
  const Fields fields(body, "body");
  GenerationRequest out;
  WEFT_TRY_VOID(parse_sampling(fields, model, out));
  WEFT_TRY(out.sampling.logprobs, parse_top_count(fields, "logprobs"));
  WEFT_TRY_VOID(parse_common(fields, out));
  WEFT_TRY(out.echo, fields.flag("echo", false));
  WEFT_TRY(auto max_tokens, fields.integer("max_tokens"));
  WEFT_TRY_VOID(check_model(fields, model));
  WEFT_TRY(out.prompts, parse_prompts(fields, model));
  out.prompt_only = out.echo && max_tokens == 0;
  if (out.prompt_only) max_tokens = 1;
  if (out.echo && out.sampling.logprobs) out.sampling.prompt_logprobs = out.sampling.logprobs;
  constexpr std::int64_t kDefaultMaxTokens = 16;  // Source: OpenAI's API reference
  const bool given = max_tokens.has_value();
  WEFT_TRY_VOID(apply_length(max_tokens.value_or(kDefaultMaxTokens), !given, model, out));
  if (out.prompts.size() * out.n > kMaxSequencesPerRequest) {
    return bad_request(fmt::format("{} prompts with n={} are more than {} sequences",
                                   out.prompts.size(), out.n, kMaxSequencesPerRequest));
  }
  return out;
}

Result<GenerationRequest> parse_chat(const json::object& body, const ServedModel& model) {
  const Fields fields(body, "body");
  GenerationRequest out;
  out.api = Api::kChat;
  WEFT_TRY_VOID(parse_sampling(fields, model, out));
  WEFT_TRY_VOID(parse_chat_logprobs(fields, out));
  WEFT_TRY_VOID(parse_common(fields, out));
  WEFT_TRY_VOID(check_tool_choice(fields));
  WEFT_TRY(auto max_tokens, fields.integer("max_completion_tokens"));
  if (!max_tokens) {
    WEFT_TRY(max_tokens, fields.integer("max_tokens"));
  }
  WEFT_TRY_VOID(check_model(fields, model));
  WEFT_TRY(Prompt prompt, chat_prompt(fields, model));
  out.prompts.push_back(std::move(prompt));
  WEFT_TRY_VOID(apply_length(max_tokens, false, model, out));
  return out;
}

Result<GenerationRequest> parse_generate(const json::object& body, const ServedModel& model) {
  const Fields fields(body, "body");
  GenerationRequest out;
  out.api = Api::kGenerate;
  WEFT_TRY(const auto ids, fields.integers("token_ids"));
  if (!ids) return missing_field_error("body.token_ids");
  if (ids->empty()) {
    return validation_error("too_short", "body.token_ids",
                            "List should have at least 1 item after validation, not 0",
                            "<list of 0 items>");
  }
  WEFT_TRY(const json::object* object, fields.try_object("sampling_params"));
  if (object == nullptr) return missing_field_error("body.sampling_params");
  const Fields sampling(*object, "body.sampling_params");
  WEFT_TRY_VOID(parse_sampling(sampling, model, out));
  WEFT_TRY(out.sampling.logprobs, parse_top_count(sampling, "logprobs"));
  WEFT_TRY_VOID(parse_common(fields, out));
  WEFT_TRY(const auto max_tokens, sampling.integer("max_tokens"));
  WEFT_TRY_VOID(check_model(fields, model));
  Prompt prompt;
  WEFT_TRY(prompt.ids, checked_ids(*ids, model, ""));
  out.prompts.push_back(std::move(prompt));
  WEFT_TRY_VOID(apply_length(max_tokens, true, model, out));
  return out;
}

Result<std::vector<std::uint32_t>> parse_tokenize(const json::object& body,
                                                  const ServedModel& model) {
  const Fields fields(body, "body");
  WEFT_TRY_VOID(check_model(fields, model));
  if (fields.try_find("messages") != nullptr) {
    WEFT_TRY(Prompt prompt, chat_prompt(fields, model));
    return std::move(prompt.ids);
  }
  WEFT_TRY(const auto text, fields.text("prompt"));
  if (!text) return missing_field_error("body.prompt");
  WEFT_TRY(const bool add_special_tokens, fields.flag("add_special_tokens", true));
  return model.encode(*text, add_special_tokens);
}

Result<std::vector<std::uint32_t>> parse_detokenize(const json::object& body,
                                                    const ServedModel& model) {
  const Fields fields(body, "body");
  WEFT_TRY_VOID(check_model(fields, model));
  WEFT_TRY(const auto ids, fields.integers("tokens"));
  if (!ids) return missing_field_error("body.tokens");
  return checked_ids(*ids, model, "");
}

Result<json::object> parse_json_body(std::string_view content_type, std::string_view body) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (type.ends_with(' ')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  if (type != "application/json") {
    return body_error(
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed");
  }
  auto value = parse_json(body);
  if (!value) {
    return validation_error("json_invalid", "body.json",
                            "JSON decode error: " + value.error().message(), "");
  }
  if (value->is_object()) return std::move(value->get_object());
  return validation_error("dict_type", "body", "Input should be a valid dictionary", shown(*value));
}

}  // namespace weft
