#include "weft/app/train.h"

#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include <fmt/format.h>
#include <signal.h>

#include "weft/app/child_server.h"
#include "weft/app/terminal_view.h"
#include "weft/base/wording.h"
#include "weft/trainer/config.h"
#include "weft/trainer/train.h"

namespace weft {
namespace {

// Set by the signal handler, which may touch nothing else.
std::atomic<bool> stop_asked{false};
std::atomic<int> stop_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void ask_to_stop(int signal) {
  stop_signal = signal;
  stop_asked = true;
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  // A second Ctrl-C ends the process at once; the server goes with it (PR_SET_PDEATHSIG).
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

int fail(const Error& error) {
  fmt::print(stderr, "weft train: {}\n", printable(error.message()));
  return error_traits(error.code()).exit_status;
}

Result<TrainConfig> blocking_config(const TrainArguments& arguments) {
  WEFT_TRY(TrainConfig config, blocking_load_train_config(arguments.config));
  if (arguments.seed) config.seed = *arguments.seed;
  if (arguments.out) config.out = *arguments.out;
  return config;
}

// A key that nobody else has.
std::string draw_key() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

Result<std::unique_ptr<ChildServer>> blocking_spawn(const TrainConfig& config,
                                                    const std::filesystem::path& model_folder,
                                                    const std::string& key) {
  ChildServerOptions options;
  options.admin_key = key;
  options.program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft";
  options.arguments = {"serve", model_folder.string(), "--host", "127.0.0.1", "--port", "0"};
  const auto add = [&](const char* flag, std::uint64_t value) {
    options.arguments.insert(options.arguments.end(), {flag, std::to_string(value)});
  };
  add("--threads", config.server.threads);
  add("--max-num-seqs", config.server.max_num_seqs);
  options.arguments.push_back("--deterministic");
  options.log = std::filesystem::path(config.out) / "server.log";
  options.timeout = milliseconds(config.server.start_timeout_s);
  return ChildServer::blocking_start(options, stop_asked);
}

// What comes after fine-tuning.
std::string main_phase(const TrainConfig& config) {
  if (config.algorithm == "sft") return "nothing more";
  if (config.algorithm == "reward_model") {
    return fmt::format("{} steps of {} pairs for a reward model", config.reward_model.steps,
                       config.reward_model.batch);
  }
  return fmt::format(
      "{} steps of {} with {} x {} answers, {}, {}", config.rl.steps, config.algorithm,
      config.rl.prompts, config.rl.group_size,
      config.server.spawn ? "from a server of its own"
                          : fmt::format("from {}", fmt::join(config.server.url, " and ")),
      config.flow.asynchronous ? fmt::format("up to {} versions late", config.flow.max_lag)
                               : "each from the version before");
}

std::string plan_text(const TrainConfig& config) {
  return fmt::format(
      "{} with {} digits, seed {}: at most {} fine-tuning steps until {:.2f} greedy, then {}; "
      "results into {}",
      config.task.name, config.task.digits, config.seed, config.sft.max_steps, config.sft.stop_at,
      main_phase(config), config.out);
}

std::string ending_text(const TrainConfig& config) {
  if (config.algorithm == "reward_model") {
    return fmt::format(
        "\nresults: {0}/summary.json, checkpoint/; [score] model = \"{0}/checkpoint\"", config.out);
  }
  return fmt::format(
      "\nresults: {0}/summary.json, report.html,{2} checkpoint/\n"
      "talk to the model:\n"
      "  weft serve {0}/checkpoint\n"
      "  curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{{\"model\": \"checkpoint\", \"prompt\": \"{1}\", \"max_tokens\": 12, "
      "\"temperature\": 0}}'",
      config.out, config.task.name == "add" ? "47+85=" : "31452>",
      config.algorithm == "sft" ? "" : " metrics.jsonl, plot.svg,");
}

}  // namespace

int blocking_train_main(const TrainArguments& arguments) {
  const auto config = blocking_config(arguments);
  if (!config) return fail(config.error());
  TerminalView view;
  if (arguments.print_config) {
    view.print(train_config_toml(*config));
    return 0;
  }
  view.print(plan_text(*config));
  if (arguments.dry_run) return 0;
  handle_signals();

  std::unique_ptr<ChildServer> child;
  TrainEnvironment environment;
  environment.print = [&](std::string_view line) { view.print(line); };
  if (view.is_terminal()) environment.show = [&](std::string_view block) { view.show(block); };
  environment.resume = arguments.resume;
  environment.stop = &stop_asked;
  environment.ca_file = arguments.ca_file;
  environment.blocking_servers = [&](const std::filesystem::path& folder) -> Result<TrainServers> {
    if (!config->server.spawn) return TrainServers{config->server.url, arguments.key};
    const std::string key = draw_key();
    WEFT_TRY(child, blocking_spawn(*config, folder, key));
    return TrainServers{{child->url()}, key};
  };
  const Result<void> trained = blocking_train(*config, environment);
  view.leave();
  const auto ended = child == nullptr ? std::nullopt : child->try_ended();
  child.reset();
  if (stop_asked) {
    fmt::print(stderr, "weft train: interrupted\n");
    return 128 + stop_signal;
  }
  if (!trained && ended) {
    return fail(Error(trained.error().code(), trained.error().message() + "; " + *ended));
  }
  if (!trained) return fail(trained.error());
  view.print(ending_text(*config));
  return 0;
}

}  // namespace weft
