#pragma once
// The keys of servers: from flags, files or the environment, and never left where `ps` shows them;
// and whose certificates are trusted.

#include <optional>
#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/http/server.h"

namespace CLI {
class App;
}

namespace weft {

struct KeyFlags {
  std::optional<std::string> admin_key, read_key, api_key, source_key;
  std::string admin_key_file, read_key_file, api_key_file, source_key_file;
};

// --admin-key and --read-key, and each with -file.
void add_key_flags(CLI::App& command, KeyFlags& flags);
// --api-key, as vLLM calls it.
void add_api_key_flags(CLI::App& command, KeyFlags& flags);
// Likewise --source-key.
void add_source_key_flags(CLI::App& command, KeyFlags& flags);

// A flag for a key, and one with -file for a file that has it.
void add_key(CLI::App& command, const std::string& name, std::optional<std::string>& key,
             std::string& file, const std::string& what);

// --ca, or --cacert as curl calls it.
void add_ca_flag(CLI::App& command, std::string& ca_file);

// The flag, else the file, else WEFT_ADMIN_KEY, WEFT_READ_KEY or VLLM_API_KEY; "" where there is
// none. Errors: kInvalidArgument for a key that no header can carry; as blocking_read_file. Blocks.
Result<http::ServerKeys> blocking_read_keys(const KeyFlags& flags);

// The same for one key: the flag, else the file, else the environment's `variable`.
Result<std::string> blocking_read_key(std::string_view name, const std::optional<std::string>& flag,
                                      const std::string& file, const char* variable);

// Likewise of the servers that this one pulls from; WEFT_SOURCE_KEY.
Result<std::string> blocking_read_source_key(const KeyFlags& flags);

// Overwrites the values of key flags: everyone on a machine can read a process's arguments.
void hide_keys(int argc, char** argv);

}  // namespace weft
