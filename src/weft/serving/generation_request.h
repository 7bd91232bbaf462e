#pragma once
// What a client asks to be generated, parsed and checked: OpenAI's completions and chat completions
// and vLLM's token-in-token-out generate become one value. Pure functions; no socket.
//
// Sampling parameters that a client leaves out have neutral values: generation_config.json is not
// consulted but for the end tokens, so that a trainer knows what it sampled from.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/engine/request.h"
#include "weft/format/json.h"
#include "weft/serving/served_model.h"

namespace weft {

enum class Api { kCompletions, kChat, kGenerate };

struct Prompt {
  std::vector<std::uint32_t> ids;
  std::optional<std::string> text;  // where the client sent text
};

struct GenerationRequest {
  Api api = Api::kCompletions;
  std::string request_id;  // "": one is drawn
  std::vector<Prompt> prompts;
  std::uint32_t n = 1;  // sequences for each prompt; choice = prompt * n + i
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  bool echo = false;  // the prompt's text goes before the generated text
  bool prompt_only =
      false;  // echo with max_tokens 0: the token that the engine must sample is dropped
  bool stream = false;
  bool include_usage = false;  // one more event with the usage
  bool usage_in_each_event = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // logprobs show "token_id:65" instead of the token's text
  std::string cache_salt;
  std::optional<OnUpdate> on_update;       // nothing: what an update says
  std::optional<std::string> min_version;  // an id or a label; the server must have come past it
};

// The most sequences one request may ask for.
inline constexpr std::uint64_t kMaxSequencesPerRequest = 16'384;
// Source: vLLM's default of --max-logprobs.
inline constexpr std::int64_t kMaxTopLogprobs = 20;

// Errors of all three: kInvalidArgument with vLLM's param, kNotFound for a model that is not
// served.
Result<GenerationRequest> parse_completion(const boost::json::object& body,
                                           const ServedModel& model);
Result<GenerationRequest> parse_chat(const boost::json::object& body, const ServedModel& model);
Result<GenerationRequest> parse_generate(const boost::json::object& body, const ServedModel& model);

// {"prompt"} or {"messages"} to ids, as the other two do it. Also for POST /tokenize.
Result<std::vector<std::uint32_t>> parse_tokenize(const boost::json::object& body,
                                                  const ServedModel& model);
// The checked ids of {"tokens"}.
Result<std::vector<std::uint32_t>> parse_detokenize(const boost::json::object& body,
                                                    const ServedModel& model);

// The JSON object of a request to the OpenAI routes. `content_type` must be application/json.
Result<boost::json::object> parse_json_body(std::string_view content_type, std::string_view body);

}  // namespace weft
