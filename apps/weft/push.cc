#include "weft/app/push.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "commands.h"

namespace weft {

void add_push_command(CLI::App& app, Run& run) {
  auto config = std::make_shared<PushConfig>();
  auto no_progress = std::make_shared<bool>(false);
  CLI::App* const command = app.add_subcommand("push", "Hand new weights to running servers");
  command
      ->add_option("path", config->path,
                   "A .safetensors file, or a folder as save_pretrained writes it")
      ->required();
  command->add_option("--to", config->to, "A server, http://host:port; may be given again")
      ->required();
  command->add_option("--label", config->label, "What the version is called");
  command->add_option(
      "--session", config->session,
      "Who pushes: the same goes on where a cut push stopped; default: this user, host and path");
  command->add_option("--connections", config->connections, "To each server")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  command->add_flag("--json", config->json, "Print one JSON object");
  command->add_flag("--no-progress", *no_progress, "Show no progress on the terminal");
  command->callback([config, no_progress, &run] {
    config->progress = !*no_progress;
    run = [config] { return blocking_run_push(*config); };
  });
}

}  // namespace weft
