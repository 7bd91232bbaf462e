#pragma once
// The JSON that answers a generation, whole or as events of a stream. Pure functions.
//
// A log-probability is written so that reading it back as a double and rounding to float gives the
// engine's own bits. Below -9999 (a masked token) it is -9999, as in vLLM; NaN is null.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "weft/serving/generation_request.h"
#include "weft/serving/sequence_output.h"
#include "weft/serving/served_model.h"

namespace weft {

// What all parts of one answer share.
struct AnswerHead {
  std::string id;  // "cmpl-...", "chatcmpl-...", "generate-tokens-..."
  std::int64_t created_s = 0;
};

// "cmpl-" and so on, by API.
std::string_view id_prefix(Api api);

// The whole answer. Requires: all of `outputs` are finished. outputs[prompt * n + i].
std::string render_answer(const GenerationRequest& request, const ServedModel& model,
                          const AnswerHead& head, std::span<const SequenceOutput> outputs);

// What of a sequence has been streamed already.
struct StreamCursor {
  bool begun = false;
  bool ended = false;
  std::size_t text_bytes = 0;
  std::size_t tokens = 0;
  std::uint64_t text_offset = 0;  // characters of all token texts so far, for completions' logprobs
};

// The events ("data: ...\n\n") for what `outputs[choice]` has gained since `cursor`, which moves
// on; "" for nothing new.
std::string render_events(const GenerationRequest& request, const ServedModel& model,
                          const AnswerHead& head, std::span<const SequenceOutput> outputs,
                          std::size_t choice, StreamCursor& cursor);
// The end of a stream: the usage if it was asked for, then [DONE].
std::string render_stream_end(const GenerationRequest& request, const ServedModel& model,
                              const AnswerHead& head, std::span<const SequenceOutput> outputs);
// An error after the first byte: an event in the middle of a stream, then [DONE].
std::string render_stream_error(const Error& error);

}  // namespace weft
