#include "keys.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "weft/base/file.h"

namespace weft {
namespace {

constexpr std::uint64_t kMaxKeyBytes = 4096;

}  // namespace

Result<std::string> blocking_read_key(std::string_view name, const std::optional<std::string>& flag,
                                      const std::string& file, const char* variable) {
  std::string key = flag.value_or("");
  if (!file.empty()) {
    WEFT_TRY(key, blocking_read_file(file, kMaxKeyBytes));
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  } else if (const char* const value = std::getenv(variable); !flag && value != nullptr) {
    key = value;
  }
  const bool given = flag || !file.empty();
  const bool good = std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; });
  if (good && !(given && key.empty())) return key;
  return Error(ErrorCode::kInvalidArgument,
               std::string(name) + ": a key is one or more visible ASCII characters");
}

void add_key(CLI::App& command, const std::string& name, std::optional<std::string>& key,
             std::string& file, const std::string& what) {
  CLI::Option* const given = command.add_option(name, key, what)->option_text("KEY");
  command.add_option(name + "-file", file, "file that has it")->excludes(given);
}

void add_key_flags(CLI::App& command, KeyFlags& flags) {
  add_key(command, "--admin-key", flags.admin_key, flags.admin_key_file,
          "needed to control and to push, as Authorization: Bearer; also WEFT_ADMIN_KEY");
  add_key(command, "--read-key", flags.read_key, flags.read_key_file,
          "needed to pull; also WEFT_READ_KEY");
}

void add_api_key_flags(CLI::App& command, KeyFlags& flags) {
  add_key(command, "--api-key", flags.api_key, flags.api_key_file,
          "needed to generate (/v1 and /inference); also VLLM_API_KEY");
}

void add_source_key_flags(CLI::App& command, KeyFlags& flags) {
  add_key(command, "--source-key", flags.source_key, flags.source_key_file,
          "sent to the servers that this one pulls from; also WEFT_SOURCE_KEY");
}

void add_ca_flag(CLI::App& command, std::string& ca_file) {
  command
      .add_option("--ca,--cacert", ca_file,
                  "authorities in PEM that https servers' certificates may be from; default: those "
                  "of this machine, or of SSL_CERT_FILE")
      ->option_text("FILE");
}

Result<http::ServerKeys> blocking_read_keys(const KeyFlags& flags) {
  http::ServerKeys keys;
  WEFT_TRY(keys.admin_key, blocking_read_key("--admin-key", flags.admin_key, flags.admin_key_file,
                                             "WEFT_ADMIN_KEY"));
  WEFT_TRY(keys.read_key,
           blocking_read_key("--read-key", flags.read_key, flags.read_key_file, "WEFT_READ_KEY"));
  WEFT_TRY(keys.api_key,
           blocking_read_key("--api-key", flags.api_key, flags.api_key_file, "VLLM_API_KEY"));
  return keys;
}

Result<std::string> blocking_read_source_key(const KeyFlags& flags) {
  return blocking_read_key("--source-key", flags.source_key, flags.source_key_file,
                           "WEFT_SOURCE_KEY");
}

void hide_keys(int argc, char** argv) {
  constexpr std::array<std::string_view, 5> kNames = {"--admin-key", "--read-key", "--api-key",
                                                      "--source-key", "--key"};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string_view name = argument.substr(0, argument.find('='));
    if (std::ranges::find(kNames, name) == kNames.end()) continue;
    char* value = nullptr;
    if (name.size() < argument.size()) {
      value = argv[i] + name.size() + 1;
    } else if (i + 1 < argc) {
      value = argv[++i];
    }
    if (value != nullptr) std::memset(value, '*', std::strlen(value));
  }
}

}  // namespace weft
