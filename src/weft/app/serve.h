#pragma once
// `weft serve`: a model folder, an engine, a weight receiver and an HTTP server, wired together.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "weft/app/follow.h"
#include "weft/app/server_process.h"
#include "weft/engine/engine.h"
#include "weft/http/client.h"
#include "weft/tensor/dtype.h"
#include "weft/transfer/receiver.h"

namespace weft {

struct ServeOptions {
  std::filesystem::path model;  // a Hugging Face folder; empty: start with what is followed
  ListenOptions listen;
  EngineOptions engine;
  std::optional<DType> dtype;     // nothing: as stored
  std::string served_model_name;  // "": the folder's name
  std::optional<std::filesystem::path>
      allow_path;                          // where {"path"} updates may read; nothing: nowhere
  std::vector<std::string> allow_sources;  // URL prefixes from which {"source"} updates may pull
  std::optional<FollowedHead> follow;      // keeps itself at this head
  http::ClientOptions source;              // for servers that this one pulls from
  std::optional<std::filesystem::path> state_dir;  // what is committed is kept there
  ReceiverOptions receiver;                        // but for what is above, and what the model says
  std::string weft_version;
};

// Serves until SIGINT or SIGTERM; returns the process's exit status: 130, 143, or that of the
// error, which is then one line on standard error. "listening on URL" there says that it is ready.
// Must be called before other threads are started (they would take the signals). Blocks.
int blocking_serve(const ServeOptions& options);

}  // namespace weft
