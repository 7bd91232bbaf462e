#include "weft/checkpoint/model_files.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "weft/base/file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Source: transformers' constants for configs and slow and fast tokenizers.
constexpr auto kNames = std::to_array<std::string_view>(
    {"added_tokens.json", "chat_template.jinja", "chat_template.json", "config.json",
     "generation_config.json", "merges.txt", "special_tokens_map.json", "spiece.model",
     "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"});

}  // namespace

bool is_model_file(std::string_view name) {
  return std::ranges::binary_search(kNames, name);
}

Result<ModelFiles> blocking_read_model_files(const fs::path& folder) {
  ModelFiles files;
  std::uint64_t total_bytes = 0;
  for (const std::string_view name : kNames) {
    const fs::path path = folder / name;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;
    WEFT_TRY(std::string text, blocking_read_file(path, kMaxModelFilesBytes));
    total_bytes += text.size();
    if (total_bytes > kMaxModelFilesBytes) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("{}: config and tokenizer files have more than {} bytes together",
                               folder.string(), kMaxModelFilesBytes));
    }
    files.emplace(name, std::move(text));
  }
  return files;
}

}  // namespace weft
