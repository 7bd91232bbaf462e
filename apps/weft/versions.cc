#include "weft/app/versions.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "client_flags.h"
#include "commands.h"

namespace weft {

void add_versions_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<VersionsConfig>();
  CLI::App* const command = app.add_subcommand("versions", "list what a server or a store has");
  command->add_option("URL", config->url, "http://host:port")->required();
  add_client_flags(*command, config->client, false, run,
                   [config] { return blocking_run_versions(*config); });
}

void add_rollback_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<RollbackConfig>();
  CLI::App* const command =
      app.add_subcommand("rollback", "go back to a version that a server or a store has");
  command->add_option("URL", config->url, "http://host:port")->required();
  command
      ->add_option("VERSION", config->version,
                   "an id, its first 8 digits or more, a label, or #head such as #canary")
      ->required();
  command->add_option("--head", config->head, "that moves")->capture_default_str();
  add_client_flags(*command, config->client, false, run,
                   [config] { return blocking_run_rollback(*config); });
}

}  // namespace weft
