#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "keys.h"

int main(int argc, char** argv) {
  // A log or a terminal that is gone, or full, must not end a server: writes to it fail instead.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app{"weft: new weights for inference engines, over plain HTTP"};
  app.require_subcommand(1);
  app.set_version_flag("--version", WEFT_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("weft: ") + error.what() + " (--help lists the flags)\n";
  });
  weft::Run run;
  weft::add_serve_command(app, run);
  weft::add_push_command(app, run);
  weft::add_store_command(app, run);
  weft::add_pull_command(app, run);
  weft::add_versions_command(app, run);
  weft::add_rollback_command(app, run);
  weft::add_inspect_command(app, run);
  weft::add_diff_command(app, run);
  weft::add_apply_command(app, run);
#ifdef WEFT_WITH_TRAINER
  weft::add_train_command(app, run);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes start at 100; a wrong command line is 2 here, as for every wrong argument.
    return app.exit(error) == 0 ? 0 : 2;
  }
  weft::hide_keys(argc, argv);
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: %s\n", error.what());
    constexpr int kExitInternal = 70;  // Source: EX_SOFTWARE of sysexits.h
    return kExitInternal;
  }
}
