#include "weft/serving/render.h"

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/serving/api_error.h"

namespace weft {
namespace json = boost::json;
namespace {

json::value logprob_value(float logprob) {
  constexpr double kFloor = -9999.0;  // Source: vLLM's completion answers
  if (std::isnan(logprob)) return nullptr;
  return std::max(static_cast<double>(logprob), kFloor);
}

std::uint64_t characters(std::string_view text) {
  return static_cast<std::uint64_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string id_text(std::uint32_t token) {
  return fmt::format("token_id:{}", token);
}

// One token as text. A token that holds part of a character alone is U+FFFD here.
std::string token_text(const ServedModel& model, std::uint32_t token, bool as_id) {
  if (as_id || model.tokenizer == nullptr) return id_text(token);
  return model.decode(std::span(&token, 1), false);
}

json::array ids_value(std::span<const std::uint32_t> ids) {
  return json::array(ids.begin(), ids.end());
}

json::array ids_value(std::span<const ScoredToken> tokens) {
  json::array ids;
  ids.reserve(tokens.size());
  for (const ScoredToken& token : tokens) ids.emplace_back(token.chosen.token);
  return ids;
}

std::string_view reason_text(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

json::value finish_reason_value(const SequenceOutput& output) {
  if (!output.finished()) return nullptr;
  return json::string(reason_text(output.end().reason));
}

// The stop string or stop token that ended it; null for the model's own end token.
json::value stop_reason_value(const SequenceOutput& output, const ServedModel& model) {
  if (!output.finished()) return nullptr;
  if (output.stop_text()) return json::string(*output.stop_text());
  const auto& token = output.end().stop_token;
  if (!token || model.is_end_token(*token)) return nullptr;
  return *token;
}

json::array versions_value(const SequenceOutput& output) {
  json::array spans;
  for (const VersionSpan& span : output.versions()) {
    spans.push_back({{"version", span.version->label},
                     {"start", span.start},
                     {"end", span.end},
                     {"id", span.version->id}});
  }
  return spans;
}

// The chosen token and after it the likeliest, without repeating it.
template <typename Use>
void for_each_candidate(const ScoredToken& token, Use use) {
  use(token.chosen);
  for (const TokenLogprob& candidate : token.top) {
    if (candidate.token != token.chosen.token) use(candidate);
  }
}

// {"101": {"logprob", "rank", "decoded_token"}} for each prompt token, null for the first.
json::value prompt_logprobs_value(const GenerationRequest& request, const ServedModel& model,
                                  const SequenceOutput& output) {
  if (!request.sampling.prompt_logprobs) return nullptr;
  json::array list;
  for (const ScoredToken& token : output.prompt_scores()) {
    if (list.empty()) {
      list.push_back(nullptr);
      continue;
    }
    json::object entry;
    for_each_candidate(token, [&](const TokenLogprob& candidate) {
      entry[std::to_string(candidate.token)] = {
          {"logprob", logprob_value(candidate.logprob)},
          {"rank", candidate.rank},
          {"decoded_token", token_text(model, candidate.token, false)}};
    });
    list.push_back(std::move(entry));
  }
  return list;
}

// The four parallel lists of the completions API.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const GenerationRequest& request, const ServedModel& model,
                     std::uint64_t text_offset)
      : request_(request), model_(model), text_offset_(text_offset) {}

  // The first prompt token has nothing before it that could predict it.
  void add_prompt(const SequenceOutput& output) {
    for (const ScoredToken& token : output.prompt_scores()) add(token, !tokens_.empty());
  }
  void add(const ScoredToken& token, bool scored) {
    std::string text = token_text(model_, token.chosen.token, request_.tokens_as_ids);
    offsets_.emplace_back(text_offset_);
    text_offset_ += characters(text);
    logprobs_.push_back(scored ? logprob_value(token.chosen.logprob) : nullptr);
    json::object top;
    // Tokens that look alike as text share an entry: the first, which is the chosen or the
    // likelier, stays.
    for_each_candidate(token, [&](const TokenLogprob& candidate) {
      top.emplace(token_text(model_, candidate.token, request_.tokens_as_ids),
                  logprob_value(candidate.logprob));
    });
    top_.push_back(scored ? json::value(std::move(top)) : json::value(nullptr));
    tokens_.emplace_back(std::move(text));
  }

  std::uint64_t text_offset() const { return text_offset_; }
  json::object take() && {
    return {{"text_offset", std::move(offsets_)},
            {"token_logprobs", std::move(logprobs_)},
            {"tokens", std::move(tokens_)},
            {"top_logprobs", std::move(top_)}};
  }

 private:
  const GenerationRequest& request_;
  const ServedModel& model_;
  std::uint64_t text_offset_;
  json::array offsets_, logprobs_, tokens_, top_;
};

json::object chat_logprob(const GenerationRequest& request, const ServedModel& model,
                          const TokenLogprob& token) {
  const std::string text = token_text(model, token.token, request.tokens_as_ids);
  json::array bytes;
  for (const char c : text) bytes.emplace_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", logprob_value(token.logprob)}, {"bytes", std::move(bytes)}};
}

json::value chat_logprobs(const GenerationRequest& request, const ServedModel& model,
                          std::span<const ScoredToken> tokens) {
  if (!request.sampling.logprobs) return nullptr;
  json::array content;
  for (const ScoredToken& token : tokens) {
    json::object entry = chat_logprob(request, model, token.chosen);
    json::array top;
    for (const TokenLogprob& candidate : token.top)
      top.push_back(chat_logprob(request, model, candidate));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

json::object generate_logprob(const TokenLogprob& token) {
  return {
      {"token_id", token.token}, {"logprob", logprob_value(token.logprob)}, {"rank", token.rank}};
}

json::value generate_logprobs(const GenerationRequest& request,
                              std::span<const ScoredToken> tokens) {
  if (!request.sampling.logprobs) return nullptr;
  json::array content;
  content.reserve(tokens.size());
  for (const ScoredToken& token : tokens) {
    json::object entry = generate_logprob(token.chosen);
    json::array top;
    for_each_candidate(
        token, [&](const TokenLogprob& candidate) { top.push_back(generate_logprob(candidate)); });
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

std::string prompt_text(const ServedModel& model, const Prompt& prompt) {
  return prompt.text ? *prompt.text : model.decode(prompt.ids, false);
}

struct Usage {
  std::uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

Usage usage_of(const GenerationRequest& request, std::span<const SequenceOutput> outputs) {
  Usage usage;
  for (const Prompt& prompt : request.prompts) usage.prompt_tokens += prompt.ids.size();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    usage.completion_tokens += outputs[i].tokens().size();
    // Of n sequences with one prompt the first speaks for it.
    if (i % request.n == 0) usage.cached_tokens += outputs[i].cached_tokens();
  }
  return usage;
}

json::object short_usage_value(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"completion_tokens", usage.completion_tokens}};
}

// vLLM's with --enable-prompt-tokens-details.
json::value prompt_details_value(const Usage& usage) {
  if (usage.cached_tokens == 0) return nullptr;
  return {{"cached_tokens", usage.cached_tokens}};
}

json::object usage_value(const Usage& usage) {
  json::object value = short_usage_value(usage);
  value["prompt_tokens_details"] = prompt_details_value(usage);
  value["completion_tokens_details"] = nullptr;
  return value;
}

std::string fingerprint(const ServedModel& model) {
  return "weft-" + model.weft_version;
}

json::object completion_choice(const GenerationRequest& request, const ServedModel& model,
                               const SequenceOutput& output, std::size_t index) {
  json::value logprobs = nullptr;
  if (request.sampling.logprobs) {
    CompletionLogprobs list(request, model, 0);
    if (request.echo) list.add_prompt(output);
    for (const ScoredToken& token : output.tokens()) list.add(token, true);
    logprobs = std::move(list).take();
  }
  const bool ids = request.return_token_ids;
  return {
      {"index", index},
      {"text", request.echo ? prompt_text(model, output.prompt()) + output.text() : output.text()},
      {"logprobs", std::move(logprobs)},
      {"finish_reason", finish_reason_value(output)},
      {"stop_reason", stop_reason_value(output, model)},
      {"token_ids", ids ? json::value(ids_value(output.tokens())) : json::value(nullptr)},
      {"prompt_logprobs", prompt_logprobs_value(request, model, output)},
      {"prompt_token_ids",
       ids ? json::value(ids_value(output.prompt().ids)) : json::value(nullptr)},
      {"routed_experts", nullptr},
      {"weight_versions", versions_value(output)}};
}

json::object chat_choice(const GenerationRequest& request, const ServedModel& model,
                         const SequenceOutput& output, std::size_t index) {
  const json::object message = {{"role", "assistant"}, {"content", output.text()},
                                {"refusal", nullptr},  {"annotations", nullptr},
                                {"audio", nullptr},    {"function_call", nullptr},
                                {"reasoning", nullptr}};
  return {{"index", index},
          {"message", message},
          {"logprobs", chat_logprobs(request, model, output.tokens())},
          {"finish_reason", finish_reason_value(output)},
          {"stop_reason", stop_reason_value(output, model)},
          {"token_ids", request.return_token_ids ? json::value(ids_value(output.tokens()))
                                                 : json::value(nullptr)},
          {"routed_experts", nullptr},
          {"weight_versions", versions_value(output)}};
}

// `tokens` are all of the sequence, or those of one event; the spans come with the last.
json::object generate_choice(const GenerationRequest& request, const ServedModel& model,
                             const SequenceOutput& output, std::size_t index,
                             std::span<const ScoredToken> tokens) {
  return {{"index", index},
          {"finish_reason", finish_reason_value(output)},
          {"stop_reason", stop_reason_value(output, model)},
          {"token_ids", ids_value(tokens)},
          {"routed_experts", nullptr},
          {"sampling_mask", nullptr},
          {"weight_versions",
           output.finished() ? json::value(versions_value(output)) : json::value(nullptr)},
          {"logprobs", generate_logprobs(request, tokens)}};
}

json::object openai_head(std::string_view object, const ServedModel& model,
                         const AnswerHead& head) {
  return {{"id", head.id}, {"object", object}, {"created", head.created_s}, {"model", model.name}};
}

void add_openai_tail(json::object& answer, const ServedModel& model, const Usage& usage) {
  answer["service_tier"] = nullptr;
  answer["system_fingerprint"] = fingerprint(model);
  answer["usage"] = usage_value(usage);
  answer["kv_transfer_params"] = nullptr;
  answer["ec_transfer_params"] = nullptr;
  answer["metrics"] = nullptr;
}

json::object generate_answer(const GenerationRequest& request, const ServedModel& model,
                             const AnswerHead& head, std::span<const SequenceOutput> outputs,
                             json::array choices) {
  const Prompt& prompt = request.prompts.front();
  return {{"request_id", head.id},
          {"model", model.name},
          {"created", head.created_s},
          {"usage", usage_value(usage_of(request, outputs))},
          {"prompt_logprobs", prompt_logprobs_value(request, model, outputs.front())},
          {"prompt_token_id_logprobs", nullptr},
          {"prompt_token_ids",
           request.return_token_ids ? json::value(ids_value(prompt.ids)) : json::value(nullptr)},
          {"mm_placeholders", nullptr},
          {"metrics", nullptr},
          {"kv_transfer_params", nullptr},
          {"ec_transfer_params", nullptr},
          {"output_mode", "tokens"},
          {"choices", std::move(choices)}};
}

std::string event(const json::value& value) {
  return "data: " + json::serialize(value) + "\n\n";
}

constexpr std::string_view kDone = "data: [DONE]\n\n";

// What one event adds to a sequence.
struct Gain {
  std::string text;
  std::span<const ScoredToken> tokens;
  bool first = false;
};

json::object completion_event(const GenerationRequest& request, const ServedModel& model,
                              const SequenceOutput& output, std::size_t index, const Gain& gain,
                              StreamCursor& cursor) {
  std::string text = gain.text;
  json::value logprobs = nullptr;
  if (request.sampling.logprobs) {
    CompletionLogprobs list(request, model, cursor.text_offset);
    if (gain.first && request.echo) list.add_prompt(output);
    for (const ScoredToken& token : gain.tokens) list.add(token, true);
    cursor.text_offset = list.text_offset();
    logprobs = std::move(list).take();
  }
  if (gain.first && request.echo) text.insert(0, prompt_text(model, output.prompt()));
  const bool ids = request.return_token_ids;
  json::object choice = {
      {"index", index},
      {"text", std::move(text)},
      {"logprobs", std::move(logprobs)},
      {"finish_reason", finish_reason_value(output)},
      {"stop_reason", stop_reason_value(output, model)},
      {"prompt_token_ids",
       ids && gain.first ? json::value(ids_value(output.prompt().ids)) : json::value(nullptr)},
      {"token_ids", ids ? json::value(ids_value(gain.tokens)) : json::value(nullptr)}};
  if (output.finished()) choice["weight_versions"] = versions_value(output);
  return choice;
}

json::object chat_event(const GenerationRequest& request, const ServedModel& model,
                        const SequenceOutput& output, std::size_t index, const Gain& gain) {
  json::object choice = {
      {"index", index},
      {"delta", {{"content", gain.text}}},
      {"logprobs", chat_logprobs(request, model, gain.tokens)},
      {"finish_reason", finish_reason_value(output)},
      {"token_ids",
       request.return_token_ids ? json::value(ids_value(gain.tokens)) : json::value(nullptr)}};
  if (output.finished()) {
    choice["stop_reason"] = stop_reason_value(output, model);
    choice["weight_versions"] = versions_value(output);
  }
  return choice;
}

// The first event of a chat: the role.
std::string chat_opening(const GenerationRequest& request, const ServedModel& model,
                         const AnswerHead& head, const Prompt& prompt, std::size_t index) {
  json::object answer = openai_head("chat.completion.chunk", model, head);
  answer["choices"] = json::array{{{"index", index},
                                   {"delta", {{"role", "assistant"}, {"content", ""}}},
                                   {"logprobs", nullptr},
                                   {"finish_reason", nullptr}}};
  answer["prompt_token_ids"] =
      request.return_token_ids ? json::value(ids_value(prompt.ids)) : json::value(nullptr);
  answer["prompt_text"] = nullptr;
  return event(answer);
}

}  // namespace

std::string_view id_prefix(Api api) {
  switch (api) {
    case Api::kCompletions:
      return "cmpl-";
    case Api::kChat:
      return "chatcmpl-";
    case Api::kGenerate:
      return "generate-tokens-";
  }
  return "";
}

std::string render_answer(const GenerationRequest& request, const ServedModel& model,
                          const AnswerHead& head, std::span<const SequenceOutput> outputs) {
  json::array choices;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    switch (request.api) {
      case Api::kCompletions:
        choices.push_back(completion_choice(request, model, outputs[i], i));
        break;
      case Api::kChat:
        choices.push_back(chat_choice(request, model, outputs[i], i));
        break;
      case Api::kGenerate:
        choices.push_back(generate_choice(request, model, outputs[i], i, outputs[i].tokens()));
        break;
    }
  }
  if (request.api == Api::kGenerate) {
    return json::serialize(generate_answer(request, model, head, outputs, std::move(choices)));
  }
  const bool chat = request.api == Api::kChat;
  json::object answer = openai_head(chat ? "chat.completion" : "text_completion", model, head);
  answer["choices"] = std::move(choices);
  add_openai_tail(answer, model, usage_of(request, outputs));
  if (chat) {
    const Prompt& prompt = request.prompts.front();
    answer["prompt_logprobs"] = prompt_logprobs_value(request, model, outputs.front());
    answer["prompt_token_ids"] =
        request.return_token_ids ? json::value(ids_value(prompt.ids)) : json::value(nullptr);
    answer["prompt_text"] = nullptr;
  }
  return json::serialize(answer);
}

std::string render_events(const GenerationRequest& request, const ServedModel& model,
                          const AnswerHead& head, std::span<const SequenceOutput> outputs,
                          std::size_t choice, StreamCursor& cursor) {
  const SequenceOutput& output = outputs[choice];
  if (cursor.ended || (!output.finished() && output.tokens().size() == cursor.tokens &&
                       output.text().size() == cursor.text_bytes)) {
    return "";
  }
  const Gain gain = {output.text().substr(cursor.text_bytes),
                     std::span(output.tokens()).subspan(cursor.tokens), !cursor.begun};
  cursor.text_bytes = output.text().size();
  cursor.tokens = output.tokens().size();
  cursor.begun = true;
  cursor.ended = output.finished();
  json::object answer;
  std::string opening;
  switch (request.api) {
    case Api::kCompletions:
      answer = openai_head("text_completion", model, head);
      answer["choices"] =
          json::array{completion_event(request, model, output, choice, gain, cursor)};
      break;
    case Api::kChat:
      if (gain.first) opening = chat_opening(request, model, head, output.prompt(), choice);
      answer = openai_head("chat.completion.chunk", model, head);
      answer["choices"] = json::array{chat_event(request, model, output, choice, gain)};
      if (output.finished()) answer["system_fingerprint"] = fingerprint(model);
      break;
    case Api::kGenerate:
      answer = {{"request_id", head.id}, {"usage", nullptr}, {"output_mode", "tokens"}};
      answer["choices"] = json::array{generate_choice(request, model, output, choice, gain.tokens)};
      break;
  }
  if (request.usage_in_each_event) answer["usage"] = short_usage_value(usage_of(request, outputs));
  return opening + event(answer);
}

std::string render_stream_end(const GenerationRequest& request, const ServedModel& model,
                              const AnswerHead& head, std::span<const SequenceOutput> outputs) {
  if (!request.include_usage) return std::string(kDone);
  const Usage total = usage_of(request, outputs);
  json::object usage = short_usage_value(total);
  if (total.cached_tokens > 0) usage["prompt_tokens_details"] = prompt_details_value(total);
  json::object answer;
  if (request.api == Api::kGenerate) {
    answer = {{"request_id", head.id}, {"output_mode", "tokens"}};
  } else {
    answer = openai_head(request.api == Api::kChat ? "chat.completion.chunk" : "text_completion",
                         model, head);
    answer["system_fingerprint"] = fingerprint(model);
  }
  answer["choices"] = json::array();
  answer["usage"] = std::move(usage);
  return event(answer).append(kDone);
}

std::string render_stream_error(const Error& error) {
  return "data: " + api_error_response(error).body + "\n\n" + std::string(kDone);
}

}  // namespace weft
