#pragma once
// `weft pull`: writes a version of a receiver or a store as a Hugging Face folder.

#include <string>
#include <vector>

#include "weft/app/client_command.h"

namespace weft {

struct PullConfig {
  ClientConfig client;
  std::string url;
  std::string version;  // an id, its first 8 digits or more, a label, or #head
  std::string folder;   // must not be there, or be empty
  std::vector<std::string> mirrors;
  std::string base;  // a folder or file that may have some of the blocks, or be a delta's base
  unsigned connections = 2;
};

// Blocks. Returns the exit status.
int blocking_run_pull(const PullConfig& config);

}  // namespace weft
