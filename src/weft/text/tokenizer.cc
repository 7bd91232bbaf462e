#include "weft/text/tokenizer.h"

#include <algorithm>

#include "weft/text/rust_text-inl.h"

namespace weft {
namespace {

// U+FFFD, what a decoder puts for bytes that are no character, or not yet one.
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// The ids that are decoded again as context for the next: more than the bytes of a character, and
// than the words that a decoder looks back over.
constexpr std::size_t kContextTokens = 8;

const WeftTokenizer* tokenizer_of(void* state) {
  return static_cast<WeftTokenizer*>(state);
}

// "<0x0A>" stands for one byte where the vocabulary falls back to bytes.
bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json) {
  WeftText error;
  void* state = weft_tokenizer_parse(tokenizer_json.data(), tokenizer_json.size(), &error);
  if (state == nullptr) return rust_error("tokenizer", error);
  return std::unique_ptr<Tokenizer>(new Tokenizer(state));
}

Tokenizer::~Tokenizer() {
  weft_tokenizer_free(static_cast<WeftTokenizer*>(state_));
}

Result<std::vector<std::uint32_t>> Tokenizer::encode(std::string_view text,
                                                     bool add_special_tokens) const {
  WeftIds ids;
  WeftText error;
  if (!weft_tokenizer_encode(tokenizer_of(state_), text.data(), text.size(), add_special_tokens,
                             &ids, &error)) {
    return rust_error("cannot encode the text", error);
  }
  std::vector<std::uint32_t> copy(ids.data, ids.data + ids.size);
  weft_ids_free(ids);
  return copy;
}

Result<std::string> Tokenizer::decode(std::span<const std::uint32_t> ids,
                                      bool skip_special_tokens) const {
  WeftText text;
  WeftText error;
  if (!weft_tokenizer_decode(tokenizer_of(state_), ids.data(), ids.size(), skip_special_tokens,
                             &text, &error)) {
    return rust_error("cannot decode the ids", error);
  }
  return take_text(text);
}

std::optional<std::string> Tokenizer::try_id_to_token(std::uint32_t id) const {
  WeftText token;
  if (!weft_tokenizer_id_to_token(tokenizer_of(state_), id, &token)) return std::nullopt;
  return take_text(token);
}

std::optional<std::uint32_t> Tokenizer::try_token_to_id(std::string_view token) const {
  std::uint32_t id = 0;
  if (!weft_tokenizer_token_to_id(tokenizer_of(state_), token.data(), token.size(), &id)) {
    return std::nullopt;
  }
  return id;
}

std::uint32_t Tokenizer::vocab_size() const {
  return weft_tokenizer_vocab_size(tokenizer_of(state_));
}

bool Tokenizer::is_special(std::uint32_t id) const {
  return weft_tokenizer_is_special(tokenizer_of(state_), id);
}

Result<std::string> IncrementalDecoder::push(std::uint32_t id) {
  const auto token = tokenizer_->try_id_to_token(id);
  // What decode() leaves out.
  if (!token || (skip_special_tokens_ && tokenizer_->is_special(id))) return std::string();
  ids_.push_back(id);
  // A run of bytes is text or is not as a whole: wait for its end.
  if (is_byte_token(*token)) return std::string();
  return emit(false);
}

Result<std::string> IncrementalDecoder::finish() {
  return emit(true);
}

Result<std::string> IncrementalDecoder::emit(bool is_last) {
  WEFT_TRY(const std::string text, tokenizer_->decode(ids_, skip_special_tokens_));
  std::size_t stable_bytes = text.size();
  // However many bytes of a character are there, they show as one replacement, at the end.
  if (!is_last && text.ends_with(kReplacement)) stable_bytes -= kReplacement.size();
  std::string emitted;
  if (stable_bytes > emitted_bytes_) {
    emitted = text.substr(emitted_bytes_, stable_bytes - emitted_bytes_);
    emitted_bytes_ = stable_bytes;
  }
  if (ids_.size() < 2 * kContextTokens) return emitted;

  // Forget the older half. What later ids add is the same after the rest alone, unless that decodes
  // to nothing and so looks like the start of a text.
  const std::vector<std::uint32_t> context(ids_.end() - kContextTokens, ids_.end());
  WEFT_TRY(const std::string context_text, tokenizer_->decode(context, skip_special_tokens_));
  const std::size_t held_bytes = text.size() - emitted_bytes_;
  if (context_text.size() > held_bytes) {
    ids_ = context;
    emitted_bytes_ = context_text.size() - held_bytes;
  }
  return emitted;
}

}  // namespace weft
