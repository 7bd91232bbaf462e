#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "keys.h"
#include "weft/app/judge.h"
#include "weft/app/train.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Trains a small model by SFT and RL; answers come from `weft serve` over HTTP, and every\n"
      "update goes there over HTTP. examples/ has configs, docs/training.md explains them."};
  app.name("weft train");
  weft::TrainArguments arguments;
  std::uint64_t seed = 0;
  std::string out;
  weft::JudgeArguments judge;
  auto* config_option = app.add_option("CONFIG", arguments.config, "TOML file");
  const auto* seed_option = app.add_option("--seed", seed, "instead of the config's seed");
  const auto* out_option =
      app.add_option("--out", out, "folder for results, instead of the config's");
  app.add_flag("--resume", arguments.resume,
               "go on from the state that a run with this config saved in its folder");
  app.add_flag("--print-config", arguments.print_config,
               "print the config with every key and its meaning, and end");
  app.add_flag("--dry-run", arguments.dry_run, "check the config, say what would be done, and end");
  std::optional<std::string> key;
  std::string key_file;
  weft::add_key(app, "--key", key, key_file,
                "admin key of the servers in server.url; also WEFT_KEY");
  weft::add_ca_flag(app, arguments.ca_file);
  const auto* judge_option =
      app.add_option("--judge", judge.model,
                     "serve this reward model to HTTP scorers, at POST /score, and no more");
  app.add_option("--host", judge.host, "of --judge")->capture_default_str()->needs("--judge");
  app.add_option("--port", judge.port, "of --judge; 0: any free one")
      ->capture_default_str()
      ->needs("--judge");
  app.add_option("--missing-end-penalty", judge.missing_end_penalty,
                 "of --judge: what an answer without its end loses")
      ->capture_default_str()
      ->needs("--judge");
  app.require_option(1, 0);
  config_option->excludes("--judge");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  weft::hide_keys(argc, argv);
  if (judge_option->count() > 0) return weft::blocking_judge_main(judge);
  if (seed_option->count() > 0) arguments.seed = seed;
  if (out_option->count() > 0) arguments.out = out;
  auto read = weft::blocking_read_key("--key", key, key_file, "WEFT_KEY");
  if (!read) {
    std::fprintf(stderr, "weft train: %s\n", read.error().message().c_str());
    return weft::error_traits(read.error().code()).exit_status;
  }
  arguments.key = *std::move(read);
  return weft::blocking_train_main(arguments);
}
