#pragma once
// TokenBatch: sequences laid out in rows for one pass of a model. Pure functions, no tensor
// library.
//
// What sequences of one prompt have in common from their beginning stands in a batch once and is
// computed once: they are a tree of tokens, each of which sees those it descends from, at its own
// position. A group of 16 answers has its prompt once instead of 16 times, and equal answers once;
// gradients add up by themselves. Several trees may share a row (packing.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// A prompt and the answer that is scored after it. Neither is empty.
struct TokenSequence {
  std::vector<std::uint32_t> prompt;
  std::vector<std::uint32_t> answer;
};

struct TokenBatch {
  std::size_t rows = 0, width = 0;      // in tokens; rows are padded on the right
  std::vector<std::int64_t> ids;        // [rows, width]
  std::vector<std::int64_t> positions;  // [rows, width]; empty: every row counts from 0
  std::vector<std::uint8_t> sees;       // [rows, width, width] 0 or 1; empty: causal
  std::vector<std::int64_t> places;     // into ids, each once: what is looked at
  std::vector<std::int64_t> place_of;   // [scored] into places, sequence after sequence
  std::vector<std::int64_t> targets;    // [scored] the tokens that follow there
};

// Scored is each token of the answers, at the place of the token before it: [answer tokens of all
// sequences]. Rows hold one tree each, or several of `row_tokens` together if that is not 0.
TokenBatch make_batch(std::span<const TokenSequence> sequences, std::size_t row_tokens);

// Scored is each sequence once, at its last token: [sequences]; there are no targets.
TokenBatch make_judged_batch(std::span<const TokenSequence> sequences);

}  // namespace weft
