// weft_changes: what a version changes of another, and the update in place.

#include "weft/transfer/changes.h"

#include <utility>

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"

struct weft_changes {
  weft::VersionChanges changes;
  weft::capi::WeightsRef base;  // null once they are applied
};

namespace weft::capi {
namespace {

Result<weft_changes*> blocking_pull_changes(http::Client& client, const char* version,
                                            const weft_weights& base,
                                            const weft_pull_options* given,
                                            weft_pull_report* report) {
  WEFT_TRY_VOID(check_given(version, "version"));
  WEFT_TRY(const weft_pull_options known, read_struct(given, "options"));
  WEFT_TRY(const auto held, HeldVersion::blocking_make(base));
  auto id = blocking_resolve_version(client, version);
  if (!id) return at_server(client, std::move(id).error());
  if (*id == base.id) return Error(ErrorCode::kConflict, *id + ": is the version at hand");
  const DeltaPullOptions options{.threads = known.connections > 0 ? known.connections : kThreads,
                                 .progress = progress_of(known)};
  auto pulled = weft::blocking_pull_changes(client, *id, *held, *base.lease->set, options);
  if (!pulled) return at_server(client, std::move(pulled).error());
  if (!pulled->changes) {
    const std::string& why = pulled->pull.why_not;
    return Error(ErrorCode::kUnsupported,
                 fmt::format("{} comes by no delta: {}", *id,
                             why.empty() ? "the server has no shorter way than all of it" : why));
  }
  WEFT_TRY_VOID(
      write_struct(report, report_of(*pulled->pull.report, pulled->pull.deltas), "report"));
  return new weft_changes{*std::move(pulled->changes), WeightsRef(weft_weights_retain(&base))};
}

}  // namespace
}  // namespace weft::capi

extern "C" {

using weft::Error;
using weft::ErrorCode;
using weft::Result;
namespace capi = weft::capi;

weft_code weft_pull_changes(weft_client* client, const char* version, const weft_weights* base,
                            const weft_pull_options* options, weft_changes** changes,
                            weft_pull_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY_VOID(capi::check_given(base, "base"));
    WEFT_TRY_VOID(capi::check_given(changes, "changes"));
    WEFT_TRY(*changes,
             capi::blocking_pull_changes(*client->client, version, *base, options, report));
    return {};
  });
}

size_t weft_changes_count(const weft_changes* changes) {
  return changes->changes.tensors.size();
}

weft_code weft_changes_at(const weft_changes* changes, size_t index, weft_change* change) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(change, "change"));
    if (index >= weft_changes_count(changes)) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("no change {}: there are {}", index, weft_changes_count(changes)));
    }
    const weft::TensorChanges& found = changes->changes.tensors[index];
    *change = {found.tensor, found.elements.size(), found.elements.data(), found.values.data()};
    return {};
  });
}

weft_code weft_changes_apply(weft_changes* changes, const weft_weights** after) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(after, "after"));
    if (!changes->base) return Error(ErrorCode::kConflict, "these changes were applied already");
    const auto& lease = changes->base->lease;
    weft::apply_changes(changes->changes, *std::const_pointer_cast<weft::WeightSet>(lease->set));
    const auto& target = changes->changes.target;
    *after = new weft_weights{lease, std::make_shared<const capi::Files>(changes->changes.files),
                              target->id, "", target};
    changes->base.reset();
    return {};
  });
}

void weft_changes_close(weft_changes* changes) {
  delete changes;
}

}  // extern "C"
