#include "client_flags.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "keys.h"

namespace weft {
namespace {

struct Flags {
  std::optional<std::string> key;
  std::string key_file;
  bool no_progress = false;
};

}  // namespace

void add_client_flags(CLI::App& command, ClientConfig& client, bool progress, Run& run,
                      std::function<int()> blocking_run) {
  const auto flags = std::make_shared<Flags>();
  add_key(command, "--key", flags->key, flags->key_file, "what the server asks for; also WEFT_KEY");
  add_ca_flag(command, client.ca_file);
  command.add_flag("--json", client.json, "print one JSON object");
  if (progress) {
    command.add_flag("--no-progress", flags->no_progress, "show no progress on the terminal");
  }
  command.callback(
      [flags, &client, name = command.get_name(), &run, blocking_run = std::move(blocking_run)] {
        client.progress = !flags->no_progress;
        run = [flags, &client, name, blocking_run] {
          auto read = blocking_read_key("--key", flags->key, flags->key_file, "WEFT_KEY");
          if (!read) return report_error(name, read.error(), client);
          client.key = *std::move(read);
          return blocking_run();
        };
      });
}

void add_local_flags(CLI::App& command, ClientConfig& client, Run& run,
                     std::function<int()> blocking_run) {
  command.add_flag("--json", client.json, "print one JSON object");
  command.add_flag_callback(
      "--no-progress", [&client] { client.progress = false; }, "show no progress on the terminal");
  command.callback([&run, blocking_run = std::move(blocking_run)] { run = blocking_run; });
}

}  // namespace weft
