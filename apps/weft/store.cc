#include "weft/app/store.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "flag_kinds.h"
#include "listen_flags.h"
#include "weft/app/client_command.h"

namespace weft {
namespace {

const std::map<std::string, bool> kIsOn = {{"on", true}, {"off", false}};
constexpr double kMaxDays = 36'500;
constexpr unsigned kMaxIoThreads = 64;
constexpr std::uint16_t kPort = 8100;

struct Flags {
  StoreServeOptions options;
  KeyFlags keys;
  std::optional<std::uint64_t> keep;
  std::optional<double> keep_days;
  bool json = false;
  bool repair = false;

  // What CLI11 cannot write where it belongs.
  void settle() {
    options.store.retention.keep_last = keep;
    if (keep_days) {
      options.store.retention.keep_younger =
          std::chrono::milliseconds(static_cast<std::int64_t>(*keep_days * 86'400'000));
    }
  }
};

void add_retention(CLI::App& command, Flags& flags) {
  command.add_option("--keep", flags.keep, "versions, the newest; default: all")
      ->check(check_at_least_one);
  command.add_option("--keep-days", flags.keep_days, "younger versions stay, too")
      ->check(between(0, kMaxDays));
}

void add_flags(CLI::App& command, Flags& flags) {
  StoreServeOptions& options = flags.options;
  command.add_option("DIR", options.folder, "the store's folder; made where there is none");
  options.listen.http.port = kPort;
  add_listen_flags(command, options.listen, flags.keys);
  command
      .add_option("--io-threads", options.listen.http.io_threads, "threads that send and receive")
      ->check(CLI::Range(1u, kMaxIoThreads))
      ->capture_default_str();
  add_retention(command, flags);
  add_choice(command, "--deltas", options.store.deltas, kIsOn,
             "whether versions are offered as what changed since those that they were made from");
  add_seconds(command, "--lease", options.store.lease,
              "seconds of silence after which an upload is closed", between(1, 86'400));
  command.add_option("--max-uploads", options.store.max_uploads, "open at a time")
      ->check(check_at_least_one)
      ->capture_default_str();
  add_bytes(command, "--max-version-bytes", options.store.max_version_bytes,
            "of one version, default: 4 TiB", 1);
}

int run_serve(Flags& flags) {
  flags.settle();
  auto keys = blocking_read_keys(flags.keys);
  if (!keys) return report_error("store", keys.error());
  flags.options.listen.http.keys = *std::move(keys);
  return blocking_serve_store(flags.options);
}

void add_fsck(CLI::App& store, const std::shared_ptr<Flags>& flags, Run& run) {
  CLI::App* const command = store.add_subcommand(
      "fsck", "read and hash everything; exit status 1 when something is wrong");
  command->add_option("DIR", flags->options.folder, "the store's folder")->required();
  command->add_flag("--repair", flags->repair,
                    "move what is bad to DIR/aside, so that a push brings it again");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &run] {
    run = [flags] { return blocking_run_fsck(flags->options.folder, flags->repair, flags->json); };
  });
}

void add_gc(CLI::App& store, const std::shared_ptr<Flags>& flags, Run& run) {
  CLI::App* const command =
      store.add_subcommand("gc", "let old versions go and delete what no version needs");
  command->add_option("DIR", flags->options.folder, "the store's folder")
      ->required()
      ->check(CLI::ExistingDirectory);
  add_retention(*command, *flags);
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &run] {
    run = [flags] {
      flags->settle();
      return blocking_run_gc(flags->options.folder, flags->options.store, flags->json);
    };
  });
}

}  // namespace

void add_store_command(CLI::App& app, Run& run) {
  CLI::App* const command =
      app.add_subcommand("store", "keep versions on disk, for servers to pull from");
  command->require_subcommand(0, 1);
  auto flags = std::make_shared<Flags>();
  add_flags(*command, *flags);
  add_fsck(*command, flags, run);
  add_gc(*command, flags, run);
  command->callback([command, flags, &run] {
    if (!command->get_subcommands().empty()) return;
    if (flags->options.folder.empty()) throw CLI::RequiredError("DIR");
    run = [flags] { return run_serve(*flags); };
  });
}

}  // namespace weft
