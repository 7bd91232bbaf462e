#pragma once
// `weft push`: hands the weights of a file or folder to one or more servers.

#include <string>
#include <vector>

#include "weft/app/client_command.h"
#include "weft/transfer/publisher.h"

namespace weft {

struct PushConfig {
  ClientConfig client;
  std::string path;             // a .safetensors file, or a Hugging Face folder
  std::vector<std::string> to;  // servers, "http://host:port"
  // As given on the command line. `session` "": one that the same user, host and path always have.
  PushOptions options;
  std::string base_path;  // a folder or file that has the tensors of options.base
  // Where no base is named: what was pushed to the server last, if its files are still here.
  bool delta = true;
};

// Reads, pushes to all servers side by side, prints a result for each. Blocks. Returns the exit
// status: 0, or that of the first server (in order) that failed.
int blocking_run_push(const PushConfig& config);

}  // namespace weft
