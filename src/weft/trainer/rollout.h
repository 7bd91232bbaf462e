#pragma once
// Rollouts: answers sampled by inference servers, over HTTP, as token ids with their
// log-probabilities and the version that each token came from. Any server with vLLM's POST
// /inference/v1/generate will do.

#include <cstdint>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/message.h"

namespace weft {

// A question to be answered `count` times.
struct RolloutRequest {
  std::vector<std::uint32_t> prompt;
  std::uint64_t count = 1;
  double temperature = 1.0;  // 0: greedy
  std::uint64_t max_tokens = 16;
  std::uint64_t seed = 0;
};

// Tokens [begin, end) of an answer were sampled from the version with this label.
struct VersionSpan {
  std::string label;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// One answer. A value.
struct Rollout {
  std::vector<std::uint32_t> tokens;  // the end token too
  std::vector<float> logprobs;        // [tokens] as the server computed them
  std::vector<VersionSpan> versions;  // in order, together all tokens
  bool ended = false;                 // by its end token, not by max_tokens
};

http::Request make_rollout_request(const RolloutRequest& request);
// The answers to one request. Errors: the server's own when it answered with one; kCorrupt naming
// the field when the answer cannot be used: other than `count` choices, a choice without tokens, a
// token of `vocab_size` or more, log-probabilities or spans that do not cover the tokens.
Result<std::vector<Rollout>> parse_rollouts(const http::Response& response, std::uint64_t count,
                                            std::uint64_t vocab_size);

}  // namespace weft
