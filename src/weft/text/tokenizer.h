#pragma once
// Tokenizer: text to token ids and back, as Hugging Face `tokenizers` does it. Thread-safe
// (immutable).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"

namespace weft {

class Tokenizer {
 public:
  // From the contents of a tokenizer.json. Errors: kInvalidArgument with the library's reason.
  static Result<std::unique_ptr<Tokenizer>> parse(std::string_view tokenizer_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Errors: kInvalidArgument.
  Result<std::vector<std::uint32_t>> encode(std::string_view text, bool add_special_tokens) const;
  // Bytes that are no UTF-8 become U+FFFD.
  Result<std::string> decode(std::span<const std::uint32_t> ids, bool skip_special_tokens) const;
  // The token as it stands in the vocabulary, not decoded; nothing for an id outside of it.
  std::optional<std::string> try_id_to_token(std::uint32_t id) const;
  std::optional<std::uint32_t> try_token_to_id(std::string_view token) const;
  // One more than the largest id, added tokens included.
  std::uint32_t vocab_size() const;
  bool is_special(std::uint32_t id) const;

 private:
  explicit Tokenizer(void* state) : state_(state) {}
  void* state_;  // owned; the Rust library's tokenizer
};

// Turns a growing list of ids into text that never holds half a character: what cannot be decoded
// yet is held back until the ids that complete it arrive or finish() is called. One thread.
class IncrementalDecoder {
 public:
  // `tokenizer` must outlive it.
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that `id` completes; often "" in the middle of a character.
  Result<std::string> push(std::uint32_t id);
  // What was held back, with U+FFFD where a character stayed incomplete. The concatenation of all
  // pushes and this equals decode() of all ids.
  Result<std::string> finish();

 private:
  Result<std::string> emit(bool is_last);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<std::uint32_t> ids_;  // the last few, decoded again as context for the next
  std::size_t emitted_bytes_ = 0;   // of the text of ids_
};

}  // namespace weft
