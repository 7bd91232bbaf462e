#include "weft/app/store.h"

#include <chrono>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/app/client_command.h"
#include "weft/app/server_process.h"
#include "weft/base/job_thread.h"
#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/transfer/pull_routes.h"
#include "weft/transfer/upload_routes.h"

namespace weft {
namespace {

namespace json = boost::json;

// Leases and the age of versions are in seconds and days.
constexpr std::chrono::seconds kCollectInterval{60};

// Collects now and then, on a thread of its own, until it is destroyed.
class Collector {
 public:
  explicit Collector(Store& store) : store_(store) { collect_later(); }

 private:
  void collect_later() {
    thread_.post_at(std::chrono::steady_clock::now() + kCollectInterval, [this] {
      const auto collected = store_.blocking_collect();
      if (!collected) log_warning("store: {}", collected.error().message());
      collect_later();
    });
  }

  Store& store_;
  JobThread thread_{"weft-collect", JobThread::Rest::kDrop};  // last: its jobs use the store
};

void add_metric(std::string& text, std::string_view name, std::string_view type,
                std::string_view help) {
  text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

std::string metrics_text(const StoreStats& stats) {
  std::string text;
  const auto single = [&](std::string_view name, std::string_view type, std::string_view help,
                          std::uint64_t value) {
    add_metric(text, name, type, help);
    text += fmt::format("{} {}\n", name, value);
  };
  single("weft_store_versions", "gauge", "Versions that are stored.", stats.versions);
  single("weft_store_objects", "gauge", "Blocks on disk.", stats.objects);
  single("weft_store_bytes", "gauge", "Bytes of the blocks on disk.", stats.object_bytes);
  single("weft_store_uploads_open", "gauge", "Uploads under way.", stats.uploads_open);
  single("weft_store_blocks_in_total", "counter", "Blocks that came and were verified.",
         stats.blocks_in);
  single("weft_store_bytes_out_total", "counter", "Bytes of versions handed out to be sent.",
         stats.bytes_out);
  const auto labelled = [&](std::string_view name, std::string_view label, std::string_view help,
                            const std::map<std::string, std::uint64_t>& values) {
    add_metric(text, name, "counter", help);
    for (const auto& [value, count] : values) {
      text += fmt::format("{}{{{}=\"{}\"}} {}\n", name, label, value, count);
    }
  };
  labelled("weft_store_bytes_in_total", "encoding", "Bytes of verified blocks, as they were sent.",
           stats.bytes_in);
  labelled("weft_store_refused_total", "reason", "Push calls that were refused.", stats.refused);
  single("weft_store_deltas", "gauge", "Deltas on offer.", stats.deltas);
  single("weft_store_delta_bytes", "gauge", "Bytes of the deltas on offer.", stats.delta_bytes);
  single("weft_store_deltas_made_total", "counter", "Deltas that were made and proven.",
         stats.deltas_made);
  labelled("weft_store_deltas_given_up_total", "reason", "Deltas that were not made after all.",
           stats.deltas_given_up);
  return text;
}

std::vector<http::Route> store_routes(Store& store) {
  std::vector<http::Route> routes = upload_routes(store.uploads());
  for (http::Route& route : pull_routes(store.versions())) routes.push_back(std::move(route));
  http::Route health{"GET", "/health", {}, {}};
  health.access = http::Access::kOpen;
  health.handler = [](const http::Request&, std::shared_ptr<http::Exchange> exchange) {
    exchange->respond({});
  };
  http::Route metrics{"GET", "/metrics", {}, {}};
  metrics.access = http::Access::kOpen;
  metrics.handler = [&store](const http::Request&, std::shared_ptr<http::Exchange> exchange) {
    http::Response response;
    response.headers.set("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    response.body = metrics_text(store.stats());
    exchange->respond(std::move(response));
  };
  routes.push_back(std::move(health));
  routes.push_back(std::move(metrics));
  return routes;
}

Result<int> serve(const StoreServeOptions& options) {
  WEFT_TRY(const http::ServerOptions server_options, blocking_server_options(options.listen));
  StopSignals stop;
  WEFT_TRY(const auto store, Store::blocking_open(options.folder, options.store));
  Collector collector(*store);
  WEFT_TRY(const auto server, http::Server::create(server_options, store_routes(*store)));
  log_info("{}: {}", options.folder.string(), counted(store->stats().versions, "version"));
  announce_listening(server_options, server->port());
  const int signal = stop.blocking_wait();
  server->blocking_stop(kStopGrace);
  return kExitBySignal + signal;
}

std::string fsck_json(const FsckReport& report) {
  json::array faults;
  for (const StoreFault& fault : report.faults) {
    faults.push_back(
        json::object{{"path", fault.path},
                     {"fault", fault.what},
                     {"versions", json::array(fault.versions.begin(), fault.versions.end())},
                     {"set_aside", fault.set_aside}});
  }
  return json::serialize(json::object{{"versions", report.versions},
                                      {"objects", report.objects},
                                      {"bytes", report.bytes},
                                      {"deltas", report.deltas},
                                      {"unreferenced", report.unreferenced},
                                      {"faults", std::move(faults)}});
}

}  // namespace

int blocking_serve_store(const StoreServeOptions& options) {
  const auto status = serve(options);
  return status ? *status : report_error("store", status.error());
}

int blocking_run_fsck(const std::filesystem::path& folder, bool repair, bool as_json) {
  const auto report = blocking_fsck(folder, repair);
  if (!report) return report_error("store", report.error());
  if (as_json) {
    fmt::print("{}\n", fsck_json(*report));
  } else {
    for (const StoreFault& fault : report->faults) {
      fmt::print("{}\n", printable(fmt::format("{}: {}{}", fault.path, fault.what,
                                               fault.set_aside ? " (set aside)" : "")));
      for (const std::string& id : fault.versions) fmt::print("  harms {}\n", id);
    }
    fmt::print("{}, {}, {} bytes: {}\n", counted(report->versions, "version"),
               counted(report->objects, "block"), report->bytes,
               counted(report->faults.size(), "fault"));
  }
  return report->faults.empty() ? 0 : 1;
}

int blocking_run_gc(const std::filesystem::path& folder, const StoreOptions& options,
                    bool as_json) {
  const auto store = Store::blocking_open(folder, options);
  if (!store) return report_error("store", store.error());
  const auto report = (*store)->blocking_collect();
  if (!report) return report_error("store", report.error());
  if (as_json) {
    fmt::print("{}\n",
               json::serialize(json::object{
                   {"versions", json::array(report->versions.begin(), report->versions.end())},
                   {"objects", report->objects},
                   {"bytes", report->bytes}}));
  } else {
    for (const std::string& id : report->versions) fmt::print("let go {}\n", id);
    fmt::print("{}, {}, {} bytes deleted\n", counted(report->versions.size(), "version"),
               counted(report->objects, "block"), report->bytes);
  }
  return 0;
}

}  // namespace weft
