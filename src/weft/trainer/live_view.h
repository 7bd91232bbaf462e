#pragma once
// What a terminal shows of a run while it goes on: a few lines that are written again at each step.
// A pure function on values.

#include <cstdint>
#include <span>
#include <string>

#include "weft/trainer/report.h"

namespace weft {

// The lines, each with its end. `steps` are those done so far, one at least, of `all` there will
// be; `seconds` have passed.
std::string live_view(const RunSummary& summary, std::span<const StepMetrics> steps,
                      std::uint64_t all, double seconds);

}  // namespace weft
