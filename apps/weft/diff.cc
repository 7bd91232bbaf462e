#include "weft/app/diff.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "client_flags.h"
#include "commands.h"

namespace weft {
namespace {

void add_threads(CLI::App& command, unsigned& threads) {
  command.add_option("--threads", threads, "0: one for each CPU")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
}

}  // namespace

void add_diff_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<DiffConfig>();
  CLI::App* const command =
      app.add_subcommand("diff", "what one version changes of another, as a file or as figures");
  command->add_option("OLD", config->base, "a folder or a .safetensors file")->required();
  command->add_option("NEW", config->target, "a folder or a .safetensors file")->required();
  CLI::Option_group* const what = command->add_option_group("what");
  what->add_option("-o,--output", config->file, "the file to write, for `weft apply`")
      ->option_text("FILE");
  what->add_flag("--stats", config->stats,
                 "how many elements change, and what each encoding needs, by tensor");
  what->require_option(1, 2);
  add_threads(*command, config->threads);
  add_local_flags(*command, config->client, run, [config] { return blocking_run_diff(*config); });
}

void add_apply_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<ApplyConfig>();
  CLI::App* const command =
      app.add_subcommand("apply", "make a version from another and what `weft diff` wrote");
  command->add_option("OLD", config->base, "what the file was made against")->required();
  command->add_option("FILE", config->file, "of `weft diff`")->required();
  command->add_option("-o,--output", config->folder, "a folder, new or empty")
      ->required()
      ->option_text("DIR");
  command->add_flag("--force", config->force, "replace a model that is in DIR already");
  add_threads(*command, config->threads);
  add_local_flags(*command, config->client, run, [config] { return blocking_run_apply(*config); });
}

}  // namespace weft
