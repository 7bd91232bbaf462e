#pragma once
// `weft train`: reads the config, starts the server, handles signals, runs the trainer.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weft {

struct TrainArguments {
  std::filesystem::path config;
  std::optional<std::uint64_t> seed;  // instead of the config's
  std::optional<std::string> out;     // likewise
  bool resume = false;                // go on from the state that was saved in `out`
  bool print_config = false;          // print the config with all defaults, and do nothing else
  std::string key;                    // admin key of the servers in server.url
  std::string ca_file;                // as in http::ClientOptions
  bool dry_run = false;  // check the config, say what would be done, and do nothing else
};

// Returns the process's exit status; 130 after Ctrl-C, with no process left. Blocks.
int blocking_train_main(const TrainArguments& arguments);

}  // namespace weft
