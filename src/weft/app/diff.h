#pragma once
// `weft diff`: what one version changes of another, as a file or as figures. `weft apply`: the
// version from the other one and the file.

#include <string>

#include "weft/app/client_command.h"

namespace weft {

struct DiffConfig {
  ClientConfig client;
  std::string base, target;  // Hugging Face folders, or .safetensors files
  std::string file;          // to write; "": none
  bool stats = false;
  unsigned threads = 0;  // 0: one for each CPU
};

struct ApplyConfig {
  ClientConfig client;
  std::string base;    // as above
  std::string file;    // of a diff
  std::string folder;  // to write
  bool force = false;  // a model that is there already is replaced
  unsigned threads = 0;
};

// Each blocks and returns the exit status.
int blocking_run_diff(const DiffConfig& config);
int blocking_run_apply(const ApplyConfig& config);

}  // namespace weft
