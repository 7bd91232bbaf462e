#pragma once
// One run of `weft train`: supervised fine-tuning from random weights, then GRPO whose rollouts
// come from inference servers over HTTP and whose every update goes to them over HTTP.

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/config.h"

namespace weft {

// The servers that generate for a run.
struct TrainServers {
  std::vector<std::string> urls;
  std::string key;  // their admin key; "" where they have none
};

// What a run needs of the process it runs in. All must outlive the run.
struct TrainEnvironment {
  // Servers of the model in `folder` (any weights), started or found. Blocks.
  std::function<Result<TrainServers>(const std::filesystem::path& folder)> blocking_servers;
  std::string ca_file;  // of servers and scorers with https; as in http::ClientOptions
  std::function<void(std::string_view line)> print;  // for people; called from any thread
  // Shows a block of lines in place of the one before. Empty: steps are printed, a line each.
  std::function<void(std::string_view block)> show;
  const std::atomic<bool>* stop = nullptr;  // looked at between steps, and while it waits
  bool resume = false;                      // go on from the state that was saved in config.out
};

// Writes into config.out: start/ (the random weights that servers start with), metrics.jsonl,
// state.safetensors (what `resume` goes on from), checkpoint/ (the trained model), summary.json,
// report.html, plot.svg. Blocks. Errors: kCancelled after `stop`;
// kCorrupt when one of the run's own checks failed, with summary.json written and naming it;
// kInternal for a loss that is not finite, naming the step; those of the servers and of files.
Result<void> blocking_train(const TrainConfig& config, const TrainEnvironment& environment);

}  // namespace weft
