// `weft train` becomes the program `weft-train` beside it, with its arguments as they are.

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "commands.h"

namespace weft {
namespace {

int become_trainer(const std::vector<std::string>& given) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft-train";
  // libtorch's OpenMP threads must not spin for long while they wait: trainer and server share the
  // cores. GNU's spin so many times, some 100 us, and then sleep; without a spin an update takes
  // twice as long. OpenMP reads this before main(), so it is set here; what is there already stays.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  ::setenv("GOMP_SPINCOUNT", "5000", 0);
  std::vector<std::string> words{"weft train"};
  words.insert(words.end(), given.begin(), given.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  fmt::print(stderr, "weft train: {}: {}\n", program.string(),
             std::generic_category().message(errno));
  return 70;
}

}  // namespace

void add_train_command(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("train", "train a small model, generating through weft serve");
  command->prefix_command();
  command->set_help_flag();  // the trainer has its own
  command->callback(
      [command, &run] { run = [given = command->remaining()] { return become_trainer(given); }; });
}

}  // namespace weft
