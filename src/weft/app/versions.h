#pragma once
// `weft versions` and `weft rollback`: what a receiver or a store has, and going back to it.

#include <string>

#include "weft/app/client_command.h"

namespace weft {

struct VersionsConfig {
  ClientConfig client;
  std::string url;
};
// Lists versions, newest first, with the heads and labels that name them. Blocks. Returns the exit
// status.
int blocking_run_versions(const VersionsConfig& config);

struct RollbackConfig {
  ClientConfig client;
  std::string url;
  std::string version;  // an id, its first 8 digits or more, a label, or #head
  std::string head = "main";
};
// Moves a head to an older version; a receiver then serves it. Blocks. Returns the exit status.
int blocking_run_rollback(const RollbackConfig& config);

}  // namespace weft
