// weft_changes: what a version changes of another, and the update in place.

#include "weft/transfer/changes.h"

#include <map>
#include <utility>

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"

struct weft_changes {
  struct Tensor {
    weft::TensorChanges changes;
    // As weft_changes_at() has told them.
    std::vector<std::int64_t> elements{};
    std::vector<std::byte> values{};
    std::map<void*, std::vector<std::byte>> replaced{};  // by where
  };

  weft::WeightSet& set() const { return *std::const_pointer_cast<weft::WeightSet>(lease->set); }

  const weft::VersionChanges changes;
  const std::shared_ptr<weft::capi::SetLease> lease;  // of the base
  bool is_applied = false;
  std::vector<Tensor> tensors{};
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
  std::unique_ptr<weft_changes> changes(new weft_changes{*std::move(pulled->changes), base.lease});
  for (const TensorChanges& each : changes->changes.tensors()) changes->tensors.push_back({each});
  return changes.release();
}

// Null never. Errors: kNotFound.
template <typename Tensors>
auto tensor_at(Tensors& tensors, std::size_t index) -> Result<decltype(tensors.data())> {
  if (index < tensors.size()) return &tensors[index];
  return Error(ErrorCode::kNotFound,
               fmt::format("no change {}: there are {}", index, tensors.size()));
}

std::size_t size_bytes(const weft_changes& changes, const weft_changes::Tensor& tensor) {
  return changes.set().tensor(tensor.changes.tensor()).size();
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
  return changes->tensors.size();
}

size_t weft_changes_tensor(const weft_changes* changes, size_t index) {
  return index < changes->tensors.size() ? changes->tensors[index].changes.tensor() : SIZE_MAX;
}

weft_code weft_changes_at(weft_changes* changes, size_t index, weft_change* change) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(change, "change"));
    WEFT_TRY(weft_changes::Tensor* const tensor, capi::tensor_at(changes->tensors, index));
    if (tensor->elements.empty()) {
      tensor->elements = tensor->changes.elements();
      tensor->values = tensor->changes.values();
    }
    *change = {tensor->changes.tensor(), tensor->elements.size(), tensor->elements.data(),
               tensor->values.data()};
    return {};
  });
}

weft_code weft_changes_check(const weft_changes* changes, size_t index, const void* data) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(data, "data"));
    WEFT_TRY(const auto* const tensor, capi::tensor_at(changes->tensors, index));
    return tensor->changes.check(
        {static_cast<const std::byte*>(data), capi::size_bytes(*changes, *tensor)});
  });
}

weft_code weft_changes_write(weft_changes* changes, size_t index, void* data) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(data, "data"));
    WEFT_TRY(auto* const tensor, capi::tensor_at(changes->tensors, index));
    tensor->replaced[data] =
        tensor->changes.write({static_cast<std::byte*>(data), capi::size_bytes(*changes, *tensor)});
    return {};
  });
}

weft_code weft_changes_undo(weft_changes* changes, size_t index, void* data) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY(auto* const tensor, capi::tensor_at(changes->tensors, index));
    const auto replaced = tensor->replaced.extract(data);
    if (!replaced) return Error(ErrorCode::kConflict, "nothing was written there");
    tensor->changes.undo({static_cast<std::byte*>(data), capi::size_bytes(*changes, *tensor)},
                         replaced.mapped());
    return {};
  });
}

weft_code weft_changes_verify(const weft_changes* changes, uint32_t threads) {
  return capi::guarded([&] {
    return weft::blocking_verify_changes(changes->changes, changes->set(), changes->is_applied,
                                         threads > 0 ? threads : capi::kThreads);
  });
}

weft_code weft_changes_apply(weft_changes* changes, const weft_weights** after) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(after, "after"));
    if (changes->is_applied)
      return Error(ErrorCode::kConflict, "these changes were applied before");
    weft::apply_changes(changes->changes, changes->set());
    const auto& target = changes->changes.target;
    *after = new weft_weights{changes->lease,
                              std::make_shared<const capi::Files>(changes->changes.files),
                              target->id, "", target};
    changes->is_applied = true;
    return {};
  });
}

void weft_changes_close(weft_changes* changes) {
  delete changes;
}

}  // extern "C"
