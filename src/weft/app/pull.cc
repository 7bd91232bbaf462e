#include "weft/app/pull.h"

#include <cstdio>
#include <memory>
#include <thread>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/wording.h"
#include "weft/transfer/delta_puller.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"

namespace weft {
namespace {

namespace json = boost::json;

// In full where deltas are not to be had; `deltas` is then 0.
Result<DeltaPull> blocking_pull_folder(const PullConfig& config, ProgressLine& line) {
  WEFT_TRY(const auto source, make_client(config.url, config.client));
  PullOptions options;
  options.connections = config.connections;
  std::vector<std::unique_ptr<http::Client>> mirrors;
  for (const std::string& url : config.mirrors) {
    WEFT_TRY(auto mirror, make_client(url, config.client));
    options.mirrors.push_back(mirrors.emplace_back(std::move(mirror)).get());
  }
  options.progress = [&line](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    line.set(0, done_bytes, total_bytes);
  };
  WEFT_TRY(const std::string id, blocking_resolve_version(*source, config.version));
  DeltaPull pull;
  std::unique_ptr<TensorSource> base;
  if (!config.base.empty()) {
    WEFT_TRY(base, blocking_open_source(config.base));
    WEFT_TRY(const SourceVersion version,
             SourceVersion::blocking_make(*base, std::thread::hardware_concurrency()));
    FolderTarget target(config.folder);
    WEFT_TRY(pull,
             blocking_pull_deltas(*source, id, version, target, {.progress = options.progress}));
    if (pull.report) return pull;
    options.base = base.get();
  }
  // It goes on with what a delta that went wrong has left.
  FolderTarget target(config.folder);
  WEFT_TRY(pull.report, blocking_pull(*source, id, target, options));
  return pull;
}

json::object report_object(const DeltaPull& pull) {
  const PullReport& report = *pull.report;
  return {{"id", report.id},
          {"total_bytes", report.total_bytes},
          {"fetched_bytes", report.fetched_bytes},
          {"held_bytes", report.held_bytes},
          {"resumed", report.resumed},
          {"corrupt_blocks", report.corrupt_blocks},
          {"deltas", pull.deltas},
          {"delta_failure", pull.why_not},
          {"seconds", report.seconds}};
}

}  // namespace

int blocking_run_pull(const PullConfig& config) {
  ProgressLine line(config.client, 1);
  const auto pull = blocking_pull_folder(config, line);
  line.clear();
  if (!pull) return report_error("pull", pull.error(), config.client);
  if (config.client.json) {
    json::object body = report_object(*pull);
    body["folder"] = config.folder;
    fmt::print("{}\n", json::serialize(body));
    return 0;
  }
  if (!pull->why_not.empty()) {
    fmt::print(stderr, "weft pull: no deltas, but all of it: {}\n", printable(pull->why_not));
  }
  const PullReport& report = *pull->report;
  fmt::print("{}  {}  {} fetched{}, {} at hand, {:.2f} s\n", config.folder, report.id,
             bytes_text(report.fetched_bytes),
             pull->deltas > 0 ? " by " + counted(pull->deltas, "delta") : "",
             bytes_text(report.held_bytes), report.seconds);
  return 0;
}

}  // namespace weft
