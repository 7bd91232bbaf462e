#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app{"weft: new weights for inference engines, over plain HTTP"};
  app.require_subcommand(1);
  app.set_version_flag("--version", WEFT_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("weft: ") + error.what() + " (--help lists the flags)\n";
  });
  weft::Run run;
  weft::add_serve_command(app, run);
  weft::add_push_command(app, run);
#ifdef WEFT_WITH_TRAINER
  weft::add_train_command(app, run);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own codes start at 100; a wrong command line is 2 here, as for every wrong argument.
    return app.exit(error) == 0 ? 0 : 2;
  }
  return run();
}
