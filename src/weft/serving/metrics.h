#pragma once
// What GET /metrics says, in Prometheus' text format: vLLM's names where vLLM has one, so that its
// dashboards work, and weft's own. docs/metrics.md has them all. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "weft/engine/engine.h"
#include "weft/transfer/receiver_metrics.h"

namespace weft {

// Of the process around the engine.
struct ServerState {
  std::uint64_t connections = 0;  // open ones
  ReceiverMetrics updates;
  // 1 when the followed head names another version than is served, else 0; nothing: none is
  // followed.
  std::optional<std::uint64_t> version_lag{};
  std::map<std::string, std::uint64_t> pulls{};  // of what is followed, by their way
};

struct Metrics {
  std::string model_name;
  EngineStats engine;
  VersionName version;
  bool paused = false;
  ServerState server;
};

std::string render_metrics(const Metrics& metrics);

}  // namespace weft
