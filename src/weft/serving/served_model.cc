#include "weft/serving/served_model.h"

#include <algorithm>

namespace weft {

Result<void> ServedModel::take_description(const ModelDescription& description) {
  eos_token_ids = description.eos_token_ids;
  bos_token = description.bos_token;
  eos_token = description.eos_token;
  tokenizer.reset();
  if (!description.tokenizer_json.empty()) {
    auto parsed = Tokenizer::parse(description.tokenizer_json);
    if (!parsed) return std::move(parsed).error().with_context("tokenizer.json");
    tokenizer = *std::move(parsed);
  }
  chat_template.reset();
  if (!description.chat_template.empty()) {
    auto parsed = ChatTemplate::parse(description.chat_template);
    if (!parsed) return std::move(parsed).error().with_context("chat template");
    chat_template = *std::move(parsed);
  }
  return {};
}

Result<std::vector<std::uint32_t>> ServedModel::encode(std::string_view text,
                                                       bool add_special_tokens) const {
  if (tokenizer == nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 "the served folder has no tokenizer.json: send token ids instead of text");
  }
  return tokenizer->encode(text, add_special_tokens);
}

std::string ServedModel::decode(std::span<const std::uint32_t> ids,
                                bool skip_special_tokens) const {
  if (tokenizer == nullptr) return "";
  auto text = tokenizer->decode(ids, skip_special_tokens);
  return text ? *std::move(text) : "";
}

bool ServedModel::is_end_token(std::uint32_t id) const {
  return std::ranges::find(eos_token_ids, id) != eos_token_ids.end();
}

}  // namespace weft
