#pragma once
// A run as pictures: what was learned, and what moving weights cost. Pure functions on values.

#include <span>
#include <string>
#include <string_view>

#include "weft/trainer/report.h"

namespace weft {

// Solve rates and reward, log-probability difference, sync time, as an SVG of its own; "" without
// steps.
std::string plot_svg(const RunSummary& summary, std::span<const StepMetrics> steps);

// One HTML page that needs nothing else: the summary, all plots (also KL, entropy, lengths, lag,
// bytes), and `config`, the text of the run's config.
std::string report_html(const RunSummary& summary, std::span<const StepMetrics> steps,
                        std::string_view config);

}  // namespace weft
