#pragma once
// The table of all routes of `weft serve` but the data plane's: OpenAI's, vLLM's, and the control
// plane.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/job_thread.h"
#include "weft/engine/engine.h"
#include "weft/http/server.h"
#include "weft/serving/generation_service.h"
#include "weft/serving/served_model.h"
#include "weft/transfer/receiver.h"

namespace weft {

// What the routes act on. All of it must outlive them.
struct ServingParts {
  Engine& engine;
  const ServedModel& model;
  Receiver& receiver;
  const WeightTarget& target;  // the receiver's
  JobThread& render;
  GenerationService& generations;
  std::optional<std::filesystem::path> allow_path;  // where {"path"} may read; nothing: nowhere
  std::string instance_id;                          // another one after each start
};

std::vector<http::Route> serving_routes(const ServingParts& parts);

}  // namespace weft
