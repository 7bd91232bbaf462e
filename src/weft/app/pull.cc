#include "weft/app/pull.h"

#include <cstdio>
#include <memory>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"

namespace weft {
namespace {

namespace json = boost::json;

Result<PullReport> blocking_pull_folder(const PullConfig& config, ProgressLine& line) {
  WEFT_TRY(const auto source, make_client(config.url, config.client));
  PullOptions options;
  options.connections = config.connections;
  std::vector<std::unique_ptr<http::Client>> mirrors;
  for (const std::string& url : config.mirrors) {
    WEFT_TRY(auto mirror, make_client(url, config.client));
    options.mirrors.push_back(mirrors.emplace_back(std::move(mirror)).get());
  }
  std::unique_ptr<TensorSource> base;
  if (!config.base.empty()) {
    WEFT_TRY(base, blocking_open_source(config.base));
    options.base = base.get();
  }
  options.progress = [&line](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    line.set(0, done_bytes, total_bytes);
  };
  WEFT_TRY(const std::string id, blocking_resolve_version(*source, config.version));
  FolderTarget target(config.folder);
  return blocking_pull(*source, id, target, options);
}

json::object report_object(const PullReport& report) {
  return {{"id", report.id},
          {"total_bytes", report.total_bytes},
          {"fetched_bytes", report.fetched_bytes},
          {"held_bytes", report.held_bytes},
          {"resumed", report.resumed},
          {"corrupt_blocks", report.corrupt_blocks},
          {"seconds", report.seconds}};
}

}  // namespace

int blocking_run_pull(const PullConfig& config) {
  ProgressLine line(config.client, 1);
  const auto report = blocking_pull_folder(config, line);
  line.clear();
  if (!report) return report_error("pull", report.error(), config.client);
  if (config.client.json) {
    json::object body = report_object(*report);
    body["folder"] = config.folder;
    fmt::print("{}\n", json::serialize(body));
  } else {
    fmt::print("{}  {}  {} fetched, {} at hand, {:.2f} s\n", config.folder, report->id,
               bytes_text(report->fetched_bytes), bytes_text(report->held_bytes), report->seconds);
  }
  return 0;
}

}  // namespace weft
