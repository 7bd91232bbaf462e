#include "weft/app/serve.h"

#include <atomic>
#include <optional>
#include <random>
#include <utility>

#include <fmt/core.h>

#include "weft/app/client_command.h"
#include "weft/app/follow.h"
#include "weft/app/server_process.h"
#include "weft/app/source_pulls.h"
#include "weft/base/job_thread.h"
#include "weft/base/log.h"
#include "weft/http/server.h"
#include "weft/model/load.h"
#include "weft/model/same_maths.h"
#include "weft/serving/engine_target.h"
#include "weft/serving/generation_service.h"
#include "weft/serving/routes.h"
#include "weft/serving/served_model.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/receiver.h"
#include "weft/transfer/state_dir.h"

namespace weft {
namespace {

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
  model.root = options.model.empty() ? options.follow->head : folder_name(options.model);
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
  auto taken = model.take_description(checkpoint);
  if (!taken) return std::move(taken).error().with_context(model.root);
  return model;
}

// What is served at first.
struct Start {
  Checkpoint checkpoint;
  VersionName version{"", "default", false};
  std::string followed;  // the id of the source's version that this is; "": none
};

// Of the followed head, into memory.
Result<Start> blocking_pull_start(const ServeOptions& options) {
  if (options.dtype) {
    return Error(ErrorCode::kUnsupported,
                 "--dtype needs a MODEL_DIR: what is pulled stays as it is");
  }
  const auto source = http::Client::make(options.follow->source, options.source);
  WEFT_TRY(const auto head, blocking_head(*source, options.follow->head));
  MemoryTarget pulled;
  WEFT_TRY_VOID(blocking_pull(*source, head.id, pulled));
  auto description = parse_model_files(pulled.files());
  if (!description) return std::move(description).error().with_context(source->server().text());
  Start start;
  static_cast<ModelDescription&>(start.checkpoint) = *std::move(description);
  start.checkpoint.files = pulled.files();
  start.checkpoint.weights = pulled.weights();
  start.checkpoint.layout = std::shared_ptr<const WeightLayout>(
      start.checkpoint.weights, &start.checkpoint.weights->layout());
  start.followed = head.id;
  if (!head.label.empty()) start.version.label = head.label;
  return start;
}

// May what was loaded from the state directory be served in place of `model`?
Result<void> check_saved(const Checkpoint& saved, const ModelConfig* model) {
  if (saved.converted) {
    return Error(ErrorCode::kConflict, "--dtype asks for another type than what was saved has");
  }
  if (model == nullptr) return {};
  const auto difference = try_find_difference(*model, saved.config);
  if (!difference) return {};
  return Error(ErrorCode::kConflict,
               fmt::format("another model was saved: its `{}` is {}, and in MODEL_DIR it is {}",
                           difference->key, difference->second, difference->first));
}

Result<Start> blocking_saved_start(const ServeOptions& options, const StateDir& state) {
  std::optional<ModelConfig> model;
  if (!options.model.empty()) {
    WEFT_TRY(model, blocking_load_config(options.model));
  }
  const SavedState& saved = *state.saved();
  auto checkpoint = blocking_load_checkpoint(saved.folder, options.dtype);
  if (!checkpoint) return state.unusable(checkpoint.error());
  if (auto checked = check_saved(*checkpoint, model ? &*model : nullptr); !checked)
    return state.unusable(std::move(checked).error().with_context(saved.folder.string()));
  return Start{*std::move(checkpoint), {"", saved.label, false}, ""};
}

// What was committed last where that was kept, else the folder, else what is followed.
Result<Start> blocking_start(const ServeOptions& options, const StateDir* state) {
  if (state != nullptr && state->saved()) return blocking_saved_start(options, *state);
  if (options.model.empty()) return blocking_pull_start(options);
  Start start;
  WEFT_TRY(start.checkpoint, blocking_load_checkpoint(options.model, options.dtype));
  start.version.converted = start.checkpoint.converted;
  return start;
}

Result<int> serve(const ServeOptions& options) {
  WEFT_TRY(const http::ServerOptions server_options, blocking_server_options(options.listen));
  std::shared_ptr<StateDir> state_dir;
  if (options.state_dir) {
    WEFT_TRY(state_dir, StateDir::blocking_open(*options.state_dir));
  }
  // Until here Ctrl-C ends the process as it always does: there is nothing to stop but the reading.
  WEFT_TRY(Start start, blocking_start(options, state_dir.get()));
  Checkpoint& checkpoint = start.checkpoint;
  StopSignals stop;
  // Destroyed last to first: the engine lets go of its requests while server and render thread,
  // though stopped, are still there.
  std::unique_ptr<http::Server> server;
  JobThread render("weft-render", JobThread::Rest::kRun);
  WEFT_TRY(auto engine,
           Engine::create(checkpoint.config, options.engine, checkpoint.weights, start.version));
  WEFT_TRY(ServedModel described, describe(options, checkpoint, *engine));
  CurrentModel model(std::move(described));
  EngineTarget target(*engine, model, checkpoint.files);
  ReceiverOptions receiver_options = options.receiver;
  receiver_options.tied_embeddings = checkpoint.config.tie_word_embeddings;
  receiver_options.files = std::make_shared<const ModelFiles>(std::move(checkpoint.files));
  receiver_options.state = std::move(state_dir);
  WEFT_TRY(auto receiver,
           Receiver::blocking_create(std::move(checkpoint.weights), target, receiver_options));
  GenerationService generations(*engine, render);
  SourcePulls pulls(*receiver, options.source);
  std::optional<Following> following;
  std::atomic<http::Server*> listening = nullptr;  // requests may come before `server` is set
  const auto state = [&listening, &receiver, &following] {
    ServerState server_state;
    if (http::Server* const at = listening.load()) {
      server_state.connections = at->open_connections();
      if (following) {
        server_state.version_lag = following->lag();
        server_state.pulls = following->pulls();
      }
    }
    server_state.updates = receiver->metrics();
    return server_state;
  };
  auto routes = serving_routes(
      {*engine, model, *receiver, target, render, generations, options.allow_path,
       options.allow_sources, fmt::format("{:08x}", std::random_device{}()),
       [&pulls](const std::string& owner, const VersionAt& version, Receiver::Done done) {
         pulls.pull(owner, version, std::move(done));
       },
       state});
  for (http::Route& route : receiver->routes()) routes.push_back(std::move(route));
  WEFT_TRY(server, http::Server::create(server_options, std::move(routes)));
  if (options.follow) {
    following.emplace(http::Client::make(options.follow->source, options.source),
                      options.follow->head, start.followed, *receiver);
  }
  listening.store(server.get());
  const auto served = model.get();
  log_info("{}: {} tokens of context, {}, version {}", served->name, served->max_model_len,
           served->dtype, target.current().id);
  announce_listening(server_options, server->port(), server->admin_url());

  const int signal = stop.blocking_wait();
  generations.abort({});  // what is followed may wait for them to end
  if (following) following->blocking_stop();
  pulls.blocking_stop();
  generations.abort({});  // those that came since
  server->blocking_stop(kStopGrace);
  render.blocking_stop();
  receiver.reset();
  engine.reset();  // before the target: a commit may still be on its way
  return kExitBySignal + signal;
}

}  // namespace

int blocking_serve(const ServeOptions& options) {
  const auto status = serve(options);
  return status ? *status : report_error("serve", status.error());
}

}  // namespace weft
