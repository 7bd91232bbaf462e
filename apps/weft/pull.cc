#include "weft/app/pull.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "client_flags.h"
#include "commands.h"

namespace weft {

void add_pull_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<PullConfig>();
  CLI::App* const command = app.add_subcommand("pull", "write a version as a Hugging Face folder");
  command->add_option("URL", config->url, "a server or a store, http://host:port")->required();
  command
      ->add_option("VERSION", config->version,
                   "an id, its first 8 digits or more, a label, or #head such as #main")
      ->required();
  command->add_option("DIR", config->folder, "new or empty")->required();
  command->add_option("--mirror", config->mirrors,
                      "another that may have it, asked where URL fails; may be given again");
  command->add_option(
      "--base,--have", config->base,
      "a folder or file here: what it has of the version is not fetched, and of the "
      "rest, where the server offers that, only what changed since");
  command->add_option("--connections", config->connections, "side by side")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  add_client_flags(*command, config->client, true, run,
                   [config] { return blocking_run_pull(*config); });
}

}  // namespace weft
