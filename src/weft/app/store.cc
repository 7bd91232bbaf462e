#include "weft/app/store.h"

#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/app/client_command.h"
#include "weft/app/server_process.h"
#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/store/store_server.h"

namespace weft {
namespace {

namespace json = boost::json;

Result<int> serve(const StoreServeOptions& options) {
  WEFT_TRY(const http::ServerOptions server_options, blocking_server_options(options.listen));
  StopSignals stop;
  WEFT_TRY(const auto server,
           StoreServer::blocking_start(options.folder, options.store, server_options));
  log_info("{}: {}", options.folder.string(), counted(server->store().stats().versions, "version"));
  announce_listening(server_options, server->port(), server->admin_url());
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
