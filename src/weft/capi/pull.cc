// weft_pull() and weft_pull_folder().

#include <optional>

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"
#include "weft/transfer/delta_puller.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"

namespace weft::capi {
namespace {

struct Pulled {
  PullReport report;
  std::size_t deltas = 0;
};

// One pull: by deltas where a version at hand and the server allow it, else in full, which goes on
// with what a delta that went wrong has left.
class Pull {
 public:
  Pull(http::Client& client, const weft_pull_options& known) : client_(client), known_(known) {}

  // `entry_done`: of PullOptions; or null.
  Result<Pulled> blocking_run(const char* version, PullTarget& target,
                              std::function<void(std::size_t)> entry_done) {
    WEFT_TRY_VOID(blocking_open_bases());
    auto id = blocking_resolve_version(client_, version);
    if (!id) return at_server(client_, std::move(id).error());
    if (held_) {
      DeltaPullOptions options{.threads = connections(), .progress = progress_of(known_)};
      WEFT_TRY(DeltaPull by_delta, blocking_pull_deltas(client_, *id, *held_, target, options));
      if (by_delta.report) return Pulled{*std::move(by_delta.report), by_delta.deltas};
    }
    WEFT_TRY(PullOptions options, full_options());
    options.entry_done = std::move(entry_done);
    auto report = weft::blocking_pull(client_, *id, target, options);
    if (!report) return at_server(client_, std::move(report).error());
    return Pulled{std::move(*report)};
  }

 private:
  unsigned connections() const { return known_.connections > 0 ? known_.connections : 2; }

  Result<void> blocking_open_bases() {
    if (known_.base_weights != nullptr) {
      WEFT_TRY(held_, HeldVersion::blocking_make(*known_.base_weights));
    } else {
      WEFT_TRY(base_, blocking_open_base(known_.base));
    }
    return {};
  }

  Result<PullOptions> full_options() {
    PullOptions options;
    options.connections = connections();
    options.retries = retries_of(known_.retries, options.retries);
    for (std::size_t i = 0; i < known_.mirror_count; ++i) {
      WEFT_TRY_VOID(check_given(known_.mirrors, "options.mirrors"));
      WEFT_TRY_VOID(check_given(known_.mirrors[i], "a mirror"));
      options.mirrors.push_back(known_.mirrors[i]->client.get());
    }
    options.base = held_ ? held_.get() : base_.get();
    if (held_) options.base_digests = &held_->content().blocks;
    options.progress = progress_of(known_);
    return options;
  }

  http::Client& client_;
  const weft_pull_options& known_;
  std::unique_ptr<HeldVersion> held_;
  std::unique_ptr<TensorSource> base_;
};

// The memory of weights that nobody else holds.
std::shared_ptr<WeightSet> memory_of(const weft_weights* weights) {
  const bool is_free = weights != nullptr && weights->references.load() == 1 &&
                       weights->lease.use_count() == 1 && weights->lease->set.use_count() == 1;
  return is_free ? std::const_pointer_cast<WeightSet>(weights->lease->set) : nullptr;
}

Result<weft_weights*> blocking_pull_weights(http::Client& client, const char* version,
                                            const weft_pull_options* given,
                                            weft_pull_report* report) {
  WEFT_TRY_VOID(check_given(version, "version"));
  WEFT_TRY(const weft_pull_options known, read_struct(given, "options"));
  const weft_weights* const reuse = known.reuse == known.base_weights ? nullptr : known.reuse;
  MemoryTarget target(memory_of(reuse), MemoryTarget::Otherwise::kAllocate);
  std::function<void(std::size_t)> tell;
  std::size_t told = 0;
  if (known.tensor != nullptr) {
    tell = [&](std::size_t entry) {
      if (entry >= target.weights()->layout().tensors().size()) return;  // a file
      const weft_tensor tensor = tensor_of(*target.weights(), entry);
      known.tensor(known.context, &tensor);
      ++told;
    };
  }
  WEFT_TRY(Pulled pulled, Pull(client, known).blocking_run(version, target, tell));
  // A delta, or tensors without a byte.
  const std::size_t tensors = target.weights()->layout().tensors().size();
  for (std::size_t i = 0; tell && i < tensors; ++i) {
    if (told == 0 || target.weights()->layout().tensor_bytes(i) == 0) tell(i);
  }
  WEFT_TRY_VOID(write_struct(report, report_of(pulled.report, pulled.deltas), "report"));
  return new weft_weights{
      std::make_shared<SetLease>(target.weights()), std::make_shared<const Files>(target.files()),
      pulled.report.id, "",
      make_version_content(std::move(pulled.report.manifest), std::move(pulled.report.digests))};
}

}  // namespace

weft_pull_report report_of(const PullReport& report, std::size_t deltas) {
  weft_pull_report out{};
  copy_id(report.id, out.id);
  out.total_bytes = report.total_bytes;
  out.fetched_bytes = report.fetched_bytes;
  out.held_bytes = report.held_bytes;
  out.resumed = report.resumed;
  out.corrupt_blocks = report.corrupt_blocks;
  out.seconds = report.seconds;
  out.deltas = static_cast<std::uint32_t>(deltas);
  return out;
}

}  // namespace weft::capi

extern "C" {

using weft::Result;
namespace capi = weft::capi;

weft_code weft_pull(weft_client* client, const char* version, const weft_pull_options* options,
                    weft_weights** weights, weft_pull_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY_VOID(capi::check_given(weights, "weights"));
    WEFT_TRY(*weights, capi::blocking_pull_weights(*client->client, version, options, report));
    return {};
  });
}

weft_code weft_pull_folder(weft_client* client, const char* version, const char* folder,
                           const weft_pull_options* options, weft_pull_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY_VOID(capi::check_given(version, "version"));
    WEFT_TRY_VOID(capi::check_given(folder, "folder"));
    WEFT_TRY(weft_pull_options known, capi::read_struct(options, "options"));
    known.base_weights = nullptr;
    weft::FolderTarget target(folder);
    WEFT_TRY(const auto pulled,
             capi::Pull(*client->client, known).blocking_run(version, target, {}));
    return capi::write_struct(report, capi::report_of(pulled.report, pulled.deltas), "report");
  });
}

}  // extern "C"
