// weft_receiver and weft_store: servers inside the calling process.

#include <chrono>
#include <future>
#include <mutex>
#include <utility>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/job_thread.h"
#include "weft/capi/internal/handles.h"
#include "weft/http/access.h"
#include "weft/store/store_server.h"
#include "weft/transfer/host_target.h"
#include "weft/transfer/receiver.h"

namespace weft::capi {
namespace {

// Hands each version over to the callback, on a thread of its own. Thread-safe.
class Handover final : public WeightTarget {
 public:
  Handover(std::shared_ptr<const WeightSet> weights, Files files, weft_take_fn take, void* context)
      : take_(take),
        context_(context),
        current_(new weft_weights{std::make_shared<SetLease>(std::move(weights)),
                                  std::make_shared<const Files>(std::move(files)), "", "default"}) {
  }

  void commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) override {
    jobs_.post([this, weights = std::move(weights), takeover = std::move(takeover),
                done = std::move(done)]() mutable {
      done(blocking_take(std::move(weights), std::move(takeover)));
    });
  }
  void commit_in_place(std::function<Result<void>()>, Takeover, Done done) override {
    done(Error(ErrorCode::kUnsupported, "this receiver always has two sets"));
  }
  // Whoever holds weights lets go of them in their own time.
  void evict_retired() override {}
  Result<void> check_files(const Files&) override { return {}; }

  void rename(VersionName version) override {
    const std::lock_guard lock(mutex_);
    current_ =
        WeightsRef(new weft_weights{current_->lease, current_->files, version.id, version.label});
    name_ = std::move(version);
  }
  VersionName current() const override {
    const std::lock_guard lock(mutex_);
    return name_;
  }
  WeightsRef retained() const {
    const std::lock_guard lock(mutex_);
    return WeightsRef(weft_weights_retain(current_.get()));
  }

 private:
  Result<Committed> blocking_take(std::shared_ptr<const WeightSet> weights, Takeover takeover) {
    const WeightsRef before = retained();
    WeightsRef fresh(new weft_weights{std::make_shared<SetLease>(std::move(weights)),
                                      takeover.files ? takeover.files : before->files,
                                      takeover.version.id, takeover.version.label});
    const auto start = now();
    clear_callback_message();
    const weft_code code = take_ == nullptr ? WEFT_OK : take_(context_, fresh.get());
    if (code != WEFT_OK) return callback_error(code);
    constexpr double kMicroseconds = 1e6;
    const auto stall_us = static_cast<std::uint64_t>(kMicroseconds * seconds_since(start));
    before->lease->released = std::move(takeover.released);
    const std::lock_guard lock(mutex_);
    current_ = std::move(fresh);
    name_ = std::move(takeover.version);
    return Committed{stall_us};
  }

  const weft_take_fn take_;
  void* const context_;
  mutable std::mutex mutex_;  // of what follows, but for the thread
  WeightsRef current_;
  VersionName name_{"", "default"};
  JobThread jobs_{"weft-take", JobThread::Rest::kRun};  // last: its jobs use the rest
};

Result<std::shared_ptr<WeightSet>> blocking_first_set(const weft_tensor* tensors,
                                                      std::size_t count) {
  WEFT_TRY(std::vector<TensorSpec> specs, read_specs(tensors, count));
  WEFT_TRY(WeightLayout made, WeightLayout::make(std::move(specs)));
  const auto layout = std::make_shared<const WeightLayout>(std::move(made));
  WEFT_TRY(auto set, WeightSet::blocking_allocate(layout));
  for (std::size_t i = 0; i < count; ++i) {
    if (tensors[i].data == nullptr) continue;
    const std::size_t index = layout->try_find(tensors[i].name).value();
    if (tensors[i].size_bytes != layout->tensor_bytes(index)) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}: {} bytes of data, its shape has {}", tensors[i].name,
                               tensors[i].size_bytes, layout->tensor_bytes(index)));
    }
    std::memcpy(set->tensor(index).data(), tensors[i].data, set->tensor(index).size());
  }
  return set;
}

}  // namespace

Result<http::ServerOptions> blocking_listen_options(const weft_listen_options* given) {
  WEFT_TRY(const weft_listen_options known, read_struct(given, "options.listen"));
  http::ServerOptions options;
  if (known.host != nullptr) options.host = known.host;
  options.port = known.port;
  options.keys = {text_or_empty(known.admin_key), text_or_empty(known.read_key)};
  if (known.tls_cert != nullptr) {
    WEFT_TRY(options.tls,
             http::blocking_load_certificate(known.tls_cert, text_or_empty(known.tls_key)));
  }
  if (!known.insecure && http::is_exposed(options)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("host {} lets others in, and whoever gets in can replace the "
                             "weights: set admin_key, or say insecure",
                             options.host));
  }
  return options;
}

http::Route health_route() {
  http::Route health{"GET", "/health", {}, {}};
  health.access = http::Access::kOpen;
  health.handler = [](const http::Request&, const std::shared_ptr<http::Exchange>& exchange) {
    exchange->respond({});
  };
  return health;
}

std::string url_of(const http::ServerOptions& options, std::uint16_t port) {
  http::Url url;
  url.scheme = options.tls ? "https" : "http";
  url.host = options.host;
  url.port = port;
  return url.text();
}

}  // namespace weft::capi

// Members end in the reverse order: the server first, then who takes its uploads in.
struct weft_receiver {
  std::unique_ptr<weft::capi::Handover> target;
  std::unique_ptr<weft::Receiver> receiver;
  std::unique_ptr<weft::http::Server> server;
  std::string url;
};

struct weft_store {
  std::unique_ptr<weft::StoreServer> server;
  std::string url;
};

namespace weft::capi {
namespace {

std::vector<http::Route> receiver_routes(Receiver& receiver) {
  std::vector<http::Route> routes = receiver.routes();
  routes.push_back(health_route());
  return routes;
}

Result<std::unique_ptr<weft_receiver>> blocking_open_receiver(const weft_tensor* tensors,
                                                              std::size_t count,
                                                              const weft_receiver_options* given) {
  WEFT_TRY(const weft_receiver_options known, read_struct(given, "options"));
  WEFT_TRY(const http::ServerOptions http, blocking_listen_options(known.listen));
  WEFT_TRY(auto set, blocking_first_set(tensors, count));
  WEFT_TRY(Files files, read_files(known.files, known.file_count));
  ReceiverOptions options;
  options.commit_mode = CommitMode::kSet;
  options.tied_embeddings = known.tied_embeddings;
  options.files = std::make_shared<const Files>(files);
  if (known.lease_ms > 0) {
    options.lease =
        std::chrono::ceil<std::chrono::seconds>(std::chrono::milliseconds(known.lease_ms));
  }
  auto opened = std::make_unique<weft_receiver>();
  opened->target = std::make_unique<Handover>(set, std::move(files), known.take, known.context);
  WEFT_TRY(opened->receiver, Receiver::blocking_create(std::move(set), *opened->target, options));
  WEFT_TRY(opened->server, http::Server::create(http, receiver_routes(*opened->receiver)));
  opened->url = url_of(http, opened->server->port());
  return opened;
}

// As a push would: stages and commits.
Result<void> blocking_receive(Receiver& receiver, http::Client& source, const char* version) {
  WEFT_TRY(const std::string id, blocking_resolve_version(source, version));
  const std::string owner = fmt::format("pull {}", source.server().text());
  const auto host = receiver.upload_host();
  WEFT_TRY(const PulledUpload pulled,
           blocking_pull_into(*host, owner, source, id, &receiver.source()));
  CommitRequest commit;
  commit.origin = source.server().text();
  std::promise<Result<CommitReport>> promise;
  host->commit(owner, pulled.epoch, std::move(commit),
               [&](Result<CommitReport> report) { promise.set_value(std::move(report)); });
  WEFT_TRY_VOID(promise.get_future().get());
  return {};
}

}  // namespace
}  // namespace weft::capi

extern "C" {

using weft::Result;
namespace capi = weft::capi;

weft_code weft_receiver_open(const weft_tensor* tensors, size_t tensor_count,
                             const weft_receiver_options* options, weft_receiver** receiver) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(receiver, "receiver"));
    WEFT_TRY(auto opened, capi::blocking_open_receiver(tensors, tensor_count, options));
    *receiver = opened.release();
    return {};
  });
}

const char* weft_receiver_url(const weft_receiver* receiver) {
  return receiver->url.c_str();
}

const weft_weights* weft_receiver_current(weft_receiver* receiver) {
  return receiver->target->retained().release();
}

weft_code weft_receiver_pull(weft_receiver* receiver, weft_client* source, const char* version) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(receiver, "receiver"));
    WEFT_TRY_VOID(capi::check_given(source, "source"));
    WEFT_TRY_VOID(capi::check_given(version, "version"));
    return capi::blocking_receive(*receiver->receiver, *source->client, version);
  });
}

void weft_receiver_close(weft_receiver* receiver) {
  if (receiver != nullptr) receiver->server->blocking_stop(capi::kStopGrace);
  delete receiver;
}

weft_code weft_store_open(const char* folder, const weft_store_options* options,
                          weft_store** store) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(folder, "folder"));
    WEFT_TRY_VOID(capi::check_given(store, "store"));
    WEFT_TRY(const weft_store_options known, capi::read_struct(options, "options"));
    WEFT_TRY(const auto http, capi::blocking_listen_options(known.listen));
    weft::StoreOptions kept;
    if (known.keep_last > 0) kept.retention.keep_last = known.keep_last;
    auto opened = std::make_unique<weft_store>();
    WEFT_TRY(opened->server, weft::StoreServer::blocking_start(folder, std::move(kept), http));
    opened->url = capi::url_of(http, opened->server->port());
    *store = opened.release();
    return {};
  });
}

const char* weft_store_url(const weft_store* store) {
  return store->url.c_str();
}

void weft_store_close(weft_store* store) {
  if (store != nullptr) store->server->blocking_stop(capi::kStopGrace);
  delete store;
}

}  // extern "C"
