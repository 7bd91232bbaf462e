#include "weft/app/serve.h"

#include <chrono>
#include <csignal>
#include <random>
#include <utility>

#include <fmt/core.h>

#include "weft/base/job_thread.h"
#include "weft/base/log.h"
#include "weft/http/server.h"
#include "weft/model/load.h"
#include "weft/serving/engine_target.h"
#include "weft/serving/generation_service.h"
#include "weft/serving/routes.h"
#include "weft/serving/served_model.h"
#include "weft/transfer/receiver.h"

namespace weft {
namespace {

// Answers that have begun may take so long to end when the server stops.
constexpr std::chrono::seconds kStopGrace{5};
constexpr int kExitBySignal = 128;  // Source: POSIX shells' convention

// SIGINT and SIGTERM wait for blocking_wait(); threads started from here on leave them alone.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Afterwards a second signal ends the process at once.
  int blocking_wait() {
    int signal = 0;
    sigwait(&signals_, &signal);
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    return signal;
  }

 private:
  sigset_t signals_{};
};

// The dtype of the largest tensor speaks for the model.
std::string_view dtype_of(const WeightLayout& layout) {
  std::size_t largest = 0;
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    if (layout.tensor_bytes(i) > layout.tensor_bytes(largest)) largest = i;
  }
  return dtype_torch_name(layout.tensors()[largest].dtype);
}

std::string folder_name(const std::filesystem::path& folder) {
  return std::filesystem::weakly_canonical(folder).filename().string();
}

Result<ServedModel> describe(const ServeOptions& options, const Checkpoint& checkpoint,
                             const Engine& engine) {
  ServedModel model;
  model.root = folder_name(options.model);
  model.name = options.served_model_name.empty() ? model.root : options.served_model_name;
  model.weft_version = options.weft_version;
  model.dtype = dtype_of(*checkpoint.layout);
  model.created_s = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  model.vocab_size = checkpoint.config.vocab_size;
  model.max_model_len = engine.options().max_model_len;
  model.max_num_seqs = engine.options().max_num_seqs;
  model.deterministic = engine.options().deterministic;
  model.eos_token_ids = checkpoint.eos_token_ids;
  model.bos_token = checkpoint.bos_token;
  model.eos_token = checkpoint.eos_token;
  if (!checkpoint.tokenizer_json.empty()) {
    auto tokenizer = Tokenizer::parse(checkpoint.tokenizer_json);
    if (!tokenizer)
      return std::move(tokenizer).error().with_context((options.model / "tokenizer.json").string());
    model.tokenizer = *std::move(tokenizer);
  }
  if (!checkpoint.chat_template.empty()) {
    auto chat_template = ChatTemplate::parse(checkpoint.chat_template);
    if (!chat_template) {
      return std::move(chat_template)
          .error()
          .with_context(options.model.string() + ": chat template");
    }
    model.chat_template = *std::move(chat_template);
  }
  return model;
}

bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

void announce(const ServeOptions& options, const ServedModel& model, const VersionName& version,
              std::uint16_t port) {
  if (!is_loopback(options.host)) {
    log_warning(
        "{} is not loopback and there are no keys: WHOEVER REACHES THIS PORT CAN REPLACE THE "
        "WEIGHTS",
        options.host);
  }
  log_info("{}: {} tokens of context, {}, version {}", model.name, model.max_model_len, model.dtype,
           version.id);
  // Not by the log: programs wait for this line, at every level.
  const std::string_view host = options.host;
  const bool ipv6 = host.find(':') != std::string_view::npos;
  fmt::print(stderr, "listening on http://{}{}{}:{}\n", ipv6 ? "[" : "", host, ipv6 ? "]" : "",
             port);
}

Result<int> serve(const ServeOptions& options) {
  // Until here Ctrl-C ends the process as it always does: there is nothing to stop but the reading.
  WEFT_TRY(Checkpoint checkpoint, blocking_load_checkpoint(options.model, options.dtype));
  StopSignals stop;
  // Destroyed last to first: the engine lets go of its requests while server and render thread,
  // though stopped, are still there.
  std::unique_ptr<http::Server> server;
  JobThread render("weft-render", JobThread::Rest::kRun);
  checkpoint.config.eos_token_ids = checkpoint.eos_token_ids;
  WEFT_TRY(auto engine, Engine::create(checkpoint.config, options.engine, checkpoint.weights,
                                       {"", "default", checkpoint.converted}));
  WEFT_TRY(const ServedModel model, describe(options, checkpoint, *engine));
  EngineTarget target(*engine);
  ReceiverOptions receiver_options;
  receiver_options.tied_embeddings = checkpoint.config.tie_word_embeddings;
  WEFT_TRY(auto receiver,
           Receiver::blocking_create(std::move(checkpoint.weights), target, receiver_options));
  GenerationService generations(*engine, model, render);
  auto routes = serving_routes({*engine, model, *receiver, target, render, generations,
                                options.allow_path, fmt::format("{:08x}", std::random_device{}())});
  for (http::Route& route : receiver->routes()) routes.push_back(std::move(route));
  http::ServerOptions server_options;
  server_options.host = options.host;
  server_options.port = options.port;
  WEFT_TRY(server, http::Server::create(server_options, std::move(routes)));
  announce(options, model, target.current(), server->port());

  const int signal = stop.blocking_wait();
  generations.abort({});
  server->blocking_stop(kStopGrace);
  render.blocking_stop();
  receiver.reset();
  engine.reset();  // before the target: a commit may still be on its way
  return kExitBySignal + signal;
}

}  // namespace

int blocking_serve(const ServeOptions& options) {
  const auto status = serve(options);
  if (status) return *status;
  fmt::print(stderr, "weft serve: {}\n", status.error().message());
  return error_traits(status.error().code()).exit_status;
}

}  // namespace weft
