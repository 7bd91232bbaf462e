#include "weft/app/inspect.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "client_flags.h"
#include "commands.h"

namespace weft {

void add_inspect_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<InspectConfig>();
  CLI::App* const command =
      app.add_subcommand("inspect", "show the tensors, files and id of a version");
  command
      ->add_option("WHAT", config->what,
                   "a folder, a .safetensors file, a manifest (.json), or a server's URL")
      ->required();
  command
      ->add_option("VERSION", config->version,
                   "at a server: an id, its first 8 digits or more, a label, or #head")
      ->capture_default_str();
  command->add_flag("--blocks", config->blocks, "with the digest of each block");
  add_client_flags(*command, config->client, false, run,
                   [config] { return blocking_run_inspect(*config); });
}

}  // namespace weft
