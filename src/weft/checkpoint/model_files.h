#pragma once
// The small files that make weights a model: config, generation config, tokenizer, chat template.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "weft/base/result.h"

namespace weft {

// Contents by name: "config.json".
using ModelFiles = std::map<std::string, std::string>;

// All of a version's together. Source: docs/protocol.md.
inline constexpr std::uint64_t kMaxModelFilesBytes = 64ull << 20;

// Is this one of the files that travel with a version? Only such names are ever written or read.
bool is_model_file(std::string_view name);

// Those of a folder; none where there are none. Errors: as File; kTooLarge over
// kMaxModelFilesBytes. Blocks.
Result<ModelFiles> blocking_read_model_files(const std::filesystem::path& folder);

}  // namespace weft
