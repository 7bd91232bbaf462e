#include "weft/app/store.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "flag_kinds.h"
#include "keys.h"
#include "weft/app/client_command.h"

namespace weft {
namespace {

constexpr double kMaxDays = 36'500;
constexpr unsigned kMaxIoThreads = 64;

struct Flags {
  StoreServeOptions options;
  KeyFlags keys;
  std::optional<std::uint64_t> keep;
  std::optional<double> keep_days;
  double lease_s = 300;
  bool json = false;
  bool repair = false;

  // What CLI11 cannot write where it belongs.
  void settle() {
    options.store.retention.keep_last = keep;
    if (keep_days) {
      options.store.retention.keep_younger =
          std::chrono::milliseconds(static_cast<std::int64_t>(*keep_days * 86'400'000));
    }
    options.store.lease = std::chrono::milliseconds(static_cast<std::int64_t>(lease_s * 1000));
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
  command.add_option("--host", options.host, "address to listen on")->capture_default_str();
  command.add_option("--port", options.port, "port; 0 takes a free one")
      ->check(CLI::Range(0, UINT16_MAX))
      ->capture_default_str();
  command.add_option("--io-threads", options.io_threads, "threads that send and receive")
      ->check(CLI::Range(1u, kMaxIoThreads))
      ->capture_default_str();
  add_retention(command, flags);
  command
      .add_option("--lease", flags.lease_s, "seconds of silence after which an upload is closed")
      ->check(between(1, 86'400))
      ->capture_default_str();
  command.add_option("--max-uploads", options.store.max_uploads, "open at a time")
      ->check(check_at_least_one)
      ->capture_default_str();
  add_bytes(command, "--max-version-bytes", options.store.max_version_bytes,
            "of one version, default: 4 TiB", 1);
  add_key_flags(command, flags.keys);
  add_certificate_flags(command, options.certificate_file, options.key_file);
  command.add_flag("--insecure", options.insecure,
                   "listen beyond this machine without an admin key");
}

int run_serve(Flags& flags) {
  flags.settle();
  auto keys = blocking_read_keys(flags.keys);
  if (!keys) return report_error("store", keys.error());
  flags.options.keys = *std::move(keys);
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
