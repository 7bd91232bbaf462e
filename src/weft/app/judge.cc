#include "weft/app/judge.h"

#include <memory>
#include <utility>

#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>

#include "weft/trainer/reward_model.h"
#include "weft/trainer/score_server.h"

namespace weft {
namespace {

Result<std::unique_ptr<ScoreServer>> blocking_start(const JudgeArguments& arguments) {
  WEFT_TRY(auto model, blocking_load_reward_model(arguments.model, /*threads=*/1));
  http::ServerOptions options;
  options.host = arguments.host;
  options.port = arguments.port;
  options.io_threads = 1;
  return ScoreServer::create(
      std::make_unique<RewardModelScorer>(std::move(model), arguments.missing_end_penalty),
      options);
}

}  // namespace

int blocking_judge_main(const JudgeArguments& arguments) {
  // Threads that are made from here on leave these to sigwait() below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto server = blocking_start(arguments);
  if (!server) {
    fmt::print(stderr, "weft train: {}\n", server.error().message());
    return error_traits(server.error().code()).exit_status;
  }
  fmt::print(stderr, "listening on http://{}:{}\n", arguments.host, (*server)->port());
  int signal = 0;
  ::sigwait(&signals, &signal);
  return 128 + signal;
}

}  // namespace weft
