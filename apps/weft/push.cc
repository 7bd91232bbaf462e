#include "weft/app/push.h"

#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "client_flags.h"
#include "commands.h"
#include "flag_kinds.h"

namespace weft {
namespace {

const std::map<std::string, Announce> kAnnounce = {
    {"auto", Announce::kAutomatic}, {"always", Announce::kAlways}, {"never", Announce::kNever}};
const std::map<std::string, bool> kIsZstd = {{"identity", false}, {"zstd", true}};

void add_how(CLI::App& command, PushConfig& config) {
  PushOptions& options = config.options;
  command.add_option("--connections", options.connections, "to each server")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  command
      .add_option("--session", options.session,
                  "who pushes: the same goes on where a cut push stopped; default: this user, "
                  "host and path")
      ->check(check_session);
  add_choice(command, "--announce", options.announce, kAnnounce,
             "whether the digests go ahead, so that blocks that are there are not sent");
  add_choice(command, "--encoding", options.zstd, kIsZstd, "of the blocks on the way");
  CLI::Option* const base =
      command.add_option("--base", options.base, "id of a version that the server has")
          ->check(check_id)
          ->option_text("ID");
  command
      .add_option("--base-path", config.base_path,
                  "its files here: what differs little from them goes as the difference")
      ->needs(base);
  command
      .add_flag("!--no-delta", config.delta,
                "do not look for what changed since the last push to the server")
      ->excludes(base);
  command
      .add_flag("--partial", options.partial, "tensors that are not in PATH are those of the base")
      ->needs(base);
}

void add_commit(CLI::App& command, PushConfig& config) {
  PushOptions& options = config.options;
  command.add_option("--label", options.label, "what the version is called")->check(check_text);
  CLI::Option* const head =
      command.add_option("--head", options.head, "head of a store that moves to the version");
  command.add_option("--if-match", options.if_match, "only if the head has this id now")
      ->needs(head)
      ->check(check_id)
      ->option_text("ID");
  command.add_option("--parent", options.parent, "id of the version that it was made from")
      ->check(check_id)
      ->option_text("ID");
  command.add_option("--origin", options.origin, "who made it, for people")->check(check_text);
  command
      .add_option("--on-update", options.on_update,
                  "what running sequences do; default: as the server was started")
      ->check(CLI::IsMember({"continue", "recompute", "finish", "abort"}));
}

}  // namespace

void add_push_command(CLI::App& app, Run& run) {
  const auto config = std::make_shared<PushConfig>();
  CLI::App* const command = app.add_subcommand("push", "hand new weights to servers and stores");
  command
      ->add_option("PATH", config->path,
                   "a .safetensors file, or a folder as save_pretrained writes it")
      ->required();
  command->add_option("--to", config->to, "a server, http://host:port; may be given again")
      ->required();
  add_commit(*command, *config);
  add_how(*command, *config);
  add_client_flags(*command, config->client, true, run,
                   [config] { return blocking_run_push(*config); });
}

}  // namespace weft
