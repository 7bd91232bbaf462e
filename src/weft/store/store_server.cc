#include "weft/store/store_server.h"

#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "weft/base/job_thread.h"
#include "weft/base/log.h"
#include "weft/transfer/pull_routes.h"
#include "weft/transfer/upload_routes.h"

namespace weft {
namespace {

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

class StoreServerImpl final : public StoreServer {
 public:
  explicit StoreServerImpl(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  Result<void> blocking_listen(const http::ServerOptions& http) {
    WEFT_TRY(server_, http::Server::create(http, store_routes(*store_)));
    return {};
  }

  std::uint16_t port() const override { return server_->port(); }
  std::string admin_url() const override { return server_->admin_url(); }
  Store& store() override { return *store_; }
  void blocking_stop(std::chrono::milliseconds grace) override { server_->blocking_stop(grace); }

 private:
  std::unique_ptr<Store> store_;
  Collector collector_{*store_};
  std::unique_ptr<http::Server> server_;
};

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::blocking_start(
    const std::filesystem::path& folder, StoreOptions options, const http::ServerOptions& http) {
  WEFT_TRY(auto store, Store::blocking_open(folder, std::move(options)));
  auto server = std::make_unique<StoreServerImpl>(std::move(store));
  WEFT_TRY_VOID(server->blocking_listen(http));
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace weft
