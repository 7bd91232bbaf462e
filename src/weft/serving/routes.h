#pragma once
// The table of all routes of `weft serve` but the data plane's: OpenAI's, vLLM's, and the control
// plane.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/job_thread.h"
#include "weft/engine/engine.h"
#include "weft/http/server.h"
#include "weft/serving/control_request.h"
#include "weft/serving/engine_target.h"
#include "weft/serving/generation_service.h"
#include "weft/serving/metrics.h"
#include "weft/serving/served_model.h"
#include "weft/transfer/receiver.h"

namespace weft {

// What the routes act on. All of it must outlive them.
struct ServingParts {
  Engine& engine;
  const CurrentModel& model;
  Receiver& receiver;
  const EngineTarget& target;  // the receiver's
  JobThread& render;
  GenerationService& generations;
  std::optional<std::filesystem::path> allow_path;  // where {"path"} may read; nothing: nowhere
  std::vector<std::string> allow_sources;           // URL prefixes that `pull` may be given
  std::string instance_id;                          // another one after each start
  // Stages a version from where it is, for the update of this owner.
  std::function<void(const std::string& owner, VersionAt version, Receiver::Done done)> pull;
  std::function<ServerState()> state;  // for /metrics
};

std::vector<http::Route> serving_routes(const ServingParts& parts);

}  // namespace weft
