// weft_pull() and weft_pull_folder().

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"

namespace weft::capi {
namespace {

Result<PullReport> blocking_pull(http::Client& client, const char* version, PullTarget& target,
                                 const weft_pull_options* given) {
  WEFT_TRY_VOID(check_given(version, "version"));
  WEFT_TRY(const weft_pull_options known, read_struct(given, "options"));
  PullOptions options;
  if (known.connections > 0) options.connections = known.connections;
  options.retries = retries_of(known.retries, options.retries);
  for (std::size_t i = 0; i < known.mirror_count; ++i) {
    WEFT_TRY_VOID(check_given(known.mirrors, "options.mirrors"));
    WEFT_TRY_VOID(check_given(known.mirrors[i], "a mirror"));
    options.mirrors.push_back(known.mirrors[i]->client.get());
  }
  WEFT_TRY(const auto base, blocking_open_base(known.base));
  options.base = base.get();
  options.progress = progress_of(known);
  auto id = blocking_resolve_version(client, version);
  if (!id) return at_server(client, std::move(id).error());
  auto report = weft::blocking_pull(client, *id, target, options);
  if (!report) return at_server(client, std::move(report).error());
  return report;
}

weft_pull_report report_of(const PullReport& report) {
  weft_pull_report out{};
  copy_id(report.id, out.id);
  out.total_bytes = report.total_bytes;
  out.fetched_bytes = report.fetched_bytes;
  out.held_bytes = report.held_bytes;
  out.resumed = report.resumed;
  out.corrupt_blocks = report.corrupt_blocks;
  out.seconds = report.seconds;
  return out;
}

}  // namespace
}  // namespace weft::capi

extern "C" {

using weft::Result;
namespace capi = weft::capi;

weft_code weft_pull(weft_client* client, const char* version, const weft_pull_options* options,
                    weft_weights** weights, weft_pull_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY_VOID(capi::check_given(weights, "weights"));
    weft::MemoryTarget target;
    WEFT_TRY(const auto pulled, capi::blocking_pull(*client->client, version, target, options));
    WEFT_TRY_VOID(capi::write_struct(report, capi::report_of(pulled), "report"));
    *weights = new weft_weights{std::make_shared<capi::SetLease>(target.weights()),
                                std::make_shared<const capi::Files>(target.files()), pulled.id, ""};
    return {};
  });
}

weft_code weft_pull_folder(weft_client* client, const char* version, const char* folder,
                           const weft_pull_options* options, weft_pull_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY_VOID(capi::check_given(folder, "folder"));
    weft::FolderTarget target(folder);
    WEFT_TRY(const auto pulled, capi::blocking_pull(*client->client, version, target, options));
    return capi::write_struct(report, capi::report_of(pulled), "report");
  });
}

}  // extern "C"
