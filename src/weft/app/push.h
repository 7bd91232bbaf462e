#pragma once
// `weft push`: hands the weights of a file or folder to one or more servers.

#include <string>
#include <vector>

namespace weft {

struct PushConfig {
  std::string path;             // a .safetensors file, or a Hugging Face folder
  std::vector<std::string> to;  // servers, "http://host:port"
  std::string label;            // "" leaves each server's label as it is
  std::string session;          // "": one that the same user, host and path always have
  unsigned connections = 2;     // to each server
  bool json = false;     // one JSON object on standard output instead of a line for each server
  bool progress = true;  // on standard error, if it is a terminal
};

// Reads, pushes to all servers side by side, prints a result for each. Blocks. Returns the exit
// status: 0, or that of the first server (in order) that failed.
int blocking_run_push(const PushConfig& config);

}  // namespace weft
