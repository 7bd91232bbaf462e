#pragma once
// `weft inspect`: what a version is made of, from its manifest at a server or computed from files.

#include <string>

#include "weft/app/client_command.h"

namespace weft {

struct InspectConfig {
  ClientConfig client;
  // A server's URL, a Hugging Face folder, a .safetensors file, or a manifest (a .json file).
  std::string what;
  // At a server: an id, its first 8 digits or more, a label, or #head.
  std::string version = "#main";
  bool blocks = false;  // with the digest of each block
};

// Blocks. Returns the exit status.
int blocking_run_inspect(const InspectConfig& config);

}  // namespace weft
