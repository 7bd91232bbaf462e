#pragma once
// ServerPool: the servers that generate for a run. Requests are dealt to them as they get done; one
// that dies is dropped, its requests go to the others, and it is taken back when it answers again,
// with the current weights before anything else.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/tensor/weight_set.h"
#include "weft/trainer/rollout.h"
#include "weft/trainer/stop_watcher.h"
#include "weft/transfer/delta_publisher.h"

namespace weft {

struct ServerPoolOptions {
  std::chrono::milliseconds request_timeout{120'000};
  // How long to wait for a server when there is none left. 0: the first that is lost when no other
  // is there ends the run.
  std::chrono::milliseconds patience{60'000};
  bool deltas = true;   // versions go as what changed since the last one
  std::string key;      // the servers' admin key, as in http::ClientOptions
  std::string ca_file;  // likewise
  std::function<void(std::string_view line)> print = [](std::string_view) {};
  const std::atomic<bool>* stop = nullptr;  // ends what goes on; must outlive the pool
};

// Of one version, over all servers.
struct PublishReport {
  std::uint64_t sent_bytes = 0;
  std::uint64_t full_bytes = 0;   // of the version, once for each server
  std::uint64_t delta_bytes = 0;  // of what was sent: deltas
  std::uint64_t fell_back = 0;    // blocks in full because their delta was refused
  double stall_us = 0;            // the longest
};

// Of engines, since they were started.
struct EngineTotals {
  double steps = 0, seconds = 0;
};

// Sums since the pool was made.
struct PoolCounts {
  std::uint64_t lost = 0;        // servers that were dropped
  std::uint64_t taken_back = 0;  // and that came again
  std::uint64_t redealt = 0;     // requests that went to another server, or to the same again
};

// Thread-safe: versions are published while another thread rolls out.
class ServerPool {
 public:
  // All servers must be there and serve a model of this layout and the tasks' vocabulary. Blocks.
  // Errors: those of blocking_check_server, naming the server; kInvalidArgument for a URL.
  static Result<std::unique_ptr<ServerPool>> blocking_connect(
      std::span<const std::string> urls, std::shared_ptr<const WeightLayout> layout,
      ServerPoolOptions options);

  // All answers to all requests; [requests][count]. Each comes whole from one server, from versions
  // that were published here. Blocks. Errors: one that will not pass; the last one when no server
  // came back in time; kCancelled after `stop`.
  Result<std::vector<std::vector<Rollout>>> blocking_roll_out(
      std::span<const RolloutRequest> requests, std::uint64_t vocab_size);

  // Makes `weights` what the servers generate with: all that are there have them when this returns,
  // one at least. `on_update`: as of a commit, what running sequences do. One thread at a time.
  // Blocks. Errors: as above, naming server and label.
  Result<PublishReport> blocking_publish(std::shared_ptr<const WeightSet> weights,
                                         const std::string& label, const std::string& on_update);

  // The sums over all servers of what their /metrics say. Blocks.
  EngineTotals blocking_engine_totals();
  PoolCounts counts() const;
  std::size_t size() const { return servers_.size(); }

 private:
  struct Server {
    std::unique_ptr<http::Client> client;
    std::unique_ptr<http::Client> probe;  // does not wait long
    std::atomic<bool> is_up{true};
    std::string text() const { return client->server().text(); }
  };
  struct Deal;  // one call of blocking_roll_out

  ServerPool(std::shared_ptr<const WeightLayout> layout, ServerPoolOptions options)
      : layout_(std::move(layout)), options_(std::move(options)) {}

  Result<void> blocking_add(const std::string& url);
  std::vector<Server*> up_servers() const;
  void lose(Server& server, const Error& error);
  // Takes back what answers again. Blocks. Errors: a push that will not pass.
  Result<void> blocking_take_back();
  Result<void> blocking_bring_up(Server& server);
  // Until a server is up. Errors: `why`, when the patience is over.
  Result<void> blocking_wait_for_one(const std::optional<Error>& why);
  void blocking_work(Server& server, std::size_t servers, Deal& deal);
  bool knows(const Rollout& rollout) const;

  std::shared_ptr<const WeightLayout> layout_;
  ServerPoolOptions options_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::mutex pushes_;  // held through a push: no server gets two at once. Guards the next three
  std::optional<DeltaPublisher> publisher_;
  std::shared_ptr<const WeightSet> weights_;  // what was published last, as `label_`
  std::string label_;
  mutable std::mutex mutex_;        // of what follows
  std::deque<std::string> labels_;  // the newest that were published
  PoolCounts counts_;
  std::optional<StopWatcher> watcher_;  // of the servers: ends first
};

}  // namespace weft
