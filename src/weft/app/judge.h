#pragma once
// `weft train --judge`: a reward model as a server, for the HTTP scorers of other runs.

#include <cstdint>
#include <filesystem>
#include <string>

namespace weft {

struct JudgeArguments {
  std::filesystem::path model;  // a reward model that a run saved
  std::string host = "127.0.0.1";
  std::uint16_t port = 8200;
  double missing_end_penalty = 0;  // what an answer without an end token loses
};

// Serves until SIGINT or SIGTERM. Returns the process's exit status. Blocks.
int blocking_judge_main(const JudgeArguments& arguments);

}  // namespace weft
