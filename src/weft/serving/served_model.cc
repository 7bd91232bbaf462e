#include "weft/serving/served_model.h"

#include <algorithm>

namespace weft {

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
