#pragma once
// What GET /metrics says, in Prometheus' text format, under vLLM's names so that its dashboards
// work. Pure.

#include <cstddef>
#include <string>

#include "weft/engine/engine.h"
#include "weft/serving/served_model.h"

namespace weft {

std::string render_metrics(const ServedModel& model, const EngineStats& stats,
                           const VersionName& version, bool paused);

}  // namespace weft
