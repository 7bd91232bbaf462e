#include "weft/trainer/server_pool.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/protocol/waits.h"
#include "weft/trainer/save.h"
#include "weft/trainer/server_identity.h"

namespace weft {
namespace {

// More than any bound on how old a token may be.
constexpr std::size_t kKnownLabels = 256;
// Between looks at servers while none is there.
constexpr std::chrono::milliseconds kProbeInterval{100};
constexpr std::chrono::seconds kProbeTimeout{1};

http::Request get_request(std::string target) {
  http::Request request;
  request.method = "GET";
  request.target = std::move(target);
  return request;
}

// The value of a metric in Prometheus' text format; 0 if the server does not have it.
double metric_value(std::string_view page, std::string_view name) {
  const std::size_t at = page.find(fmt::format("\n{}{{", name));
  const std::size_t value = at == std::string_view::npos ? at : page.find("} ", at);
  return value == std::string_view::npos ? 0 : std::strtod(page.data() + value + 2, nullptr);
}

void add(PublishReport& report, const PushReport& push) {
  report.sent_bytes += push.sent_bytes;
  report.full_bytes += push.total_bytes;
  report.delta_bytes += push.payload_bytes.at(static_cast<std::size_t>(Encoding::kDelta));
  report.fell_back += push.fell_back;
  report.stall_us = std::max(report.stall_us, push.stall_us);
}

PushOptions push_options(const std::string& label, const std::string& on_update) {
  PushOptions options;
  options.label = label;
  options.on_update = on_update;
  options.retries = 2;  // a server that is gone is taken back later
  return options;
}

}  // namespace

// Requests that wait, and answers. Thread-safe.
struct ServerPool::Deal {
  std::span<const RolloutRequest> requests;
  std::uint64_t vocab_size;
  std::vector<std::vector<Rollout>> answers;  // [requests], each written by one thread

  std::mutex mutex;  // of what follows
  std::deque<std::size_t> waiting{};
  std::optional<Error> lost{};   // the last error that passes
  std::optional<Error> final{};  // the first that does not

  // The next requests for one of `servers` servers: half of its share of what waits, so that those
  // that are done sooner get more. Source: Polychronopoulos and Kuck, "Guided self-scheduling".
  std::vector<std::size_t> take(std::size_t servers) {
    const std::lock_guard lock(mutex);
    if (final) return {};
    const std::size_t shares = servers == 1 ? 1 : 2 * servers;
    const std::size_t count = (waiting.size() + shares - 1) / shares;
    const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<std::size_t> taken(waiting.begin(), end);
    waiting.erase(waiting.begin(), end);
    return taken;
  }
};

Result<std::unique_ptr<ServerPool>> ServerPool::blocking_connect(
    std::span<const std::string> urls, std::shared_ptr<const WeightLayout> layout,
    ServerPoolOptions options) {
  std::unique_ptr<ServerPool> pool(new ServerPool(std::move(layout), std::move(options)));
  std::vector<http::Client*> clients;
  for (const std::string& url : urls) {
    WEFT_TRY_VOID(pool->blocking_add(url));
    clients.push_back(pool->servers_.back()->client.get());
  }
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  if (pool->options_.stop != nullptr) {
    pool->watcher_.emplace(*pool->options_.stop, [servers = std::span(pool->servers_)] {
      for (const auto& server : servers) {
        server->client->cancel();
        server->probe->cancel();
      }
    });
  }
  pool->publisher_.emplace(std::move(clients), pool->options_.deltas ? kAll : 0);
  return pool;
}

Result<void> ServerPool::blocking_add(const std::string& text) {
  WEFT_TRY(auto url, http::Url::parse(text));
  auto server = std::make_unique<Server>();
  http::ClientOptions options;
  options.request_timeout = options_.request_timeout;
  options.idle_timeout = options.request_timeout;  // a generation answers when it is done
  options.key = options_.key;
  options.ca_file = options_.ca_file;
  server->client = http::Client::make(url, options);
  options.connect_timeout = options.request_timeout = options.idle_timeout = kProbeTimeout;
  server->probe = http::Client::make(std::move(url), options);
  if (auto health = server->probe->blocking_send(get_request("/health")); !health) {
    return std::move(health).error().with_context("no server at " + text);
  }
  if (auto same = blocking_check_server(*server->client, *layout_); !same) {
    return std::move(same).error().with_context(text);
  }
  servers_.push_back(std::move(server));
  return {};
}

std::vector<ServerPool::Server*> ServerPool::up_servers() const {
  std::vector<Server*> up;
  for (const auto& server : servers_) {
    if (server->is_up) up.push_back(server.get());
  }
  return up;
}

void ServerPool::lose(Server& server, const Error& error) {
  if (!server.is_up.exchange(false)) return;
  {
    const std::lock_guard lock(mutex_);
    ++counts_.lost;
  }
  options_.print(fmt::format("{} is dropped: {}", server.text(), error.message()));
}

Result<void> ServerPool::blocking_take_back() {
  for (const auto& server : servers_) {
    if (server->is_up) continue;
    const auto health = server->probe->blocking_send(get_request("/health"));
    if (health && health->status == 200) WEFT_TRY_VOID(blocking_bring_up(*server));
  }
  return {};
}

Result<void> ServerPool::blocking_bring_up(Server& server) {
  const std::lock_guard lock(pushes_);
  if (server.is_up) return {};
  if (auto same = blocking_check_server(*server.client, *layout_); !same) {
    if (is_passing(same.error().code())) return {};
    return std::move(same).error().with_context(server.text() + " came back");
  }
  if (weights_ != nullptr) {
    auto pushed =
        blocking_push(*server.client, tensor_views(*weights_), push_options(label_, "recompute"));
    if (!pushed && is_passing(pushed.error().code())) return {};
    if (!pushed) {
      return std::move(pushed).error().with_context(
          fmt::format("publishing {} to {}, which came back", label_, server.text()));
    }
  }
  server.is_up = true;
  {
    const std::lock_guard counting(mutex_);
    ++counts_.taken_back;
  }
  options_.print(fmt::format("{} is taken back, with {}", server.text(), label_));
  return {};
}

Result<void> ServerPool::blocking_wait_for_one(const std::optional<Error>& why) {
  const auto start = now();
  while (up_servers().empty()) {
    const auto waited = now() - start;
    if (waited >= options_.patience) {
      return why.value_or(Error(ErrorCode::kDisconnected, "no server is there any more"));
    }
    WEFT_TRY_VOID(blocking_pause(kProbeInterval, options_.stop));
    WEFT_TRY_VOID(blocking_take_back());
  }
  return {};
}

bool ServerPool::knows(const Rollout& rollout) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(rollout.versions, [&](const VersionSpan& span) {
    return std::ranges::find(labels_, span.label) != labels_.end();
  });
}

// Until nothing waits any more or the server is lost; `servers` are at work in all.
void ServerPool::blocking_work(Server& server, std::size_t servers, Deal& deal) {
  while (server.is_up) {
    const auto which = deal.take(servers);
    if (which.empty()) return;
    std::vector<http::Request> messages;
    for (const std::size_t index : which) {
      messages.push_back(make_rollout_request(deal.requests[index]));
    }
    const auto responses = server.client->blocking_send_all(messages);
    for (std::size_t i = 0; i < which.size(); ++i) {
      auto answer = responses[i] ? parse_rollouts(*responses[i], deal.requests[which[i]].count,
                                                  deal.vocab_size)
                                 : Result<std::vector<Rollout>>(responses[i].error());
      // A server that was restarted between two requests generates with weights of its own.
      if (answer &&
          !std::ranges::all_of(*answer, [&](const Rollout& each) { return knows(each); })) {
        answer = Error(ErrorCode::kDisconnected,
                       fmt::format("{} was restarted: it answers from `{}`", server.text(),
                                   answer->front().versions.front().label));
      }
      if (answer) {
        deal.answers[which[i]] = *std::move(answer);
        continue;
      }
      const bool passes = is_passing(answer.error().code());
      if (passes) lose(server, answer.error());
      const std::lock_guard lock(deal.mutex);
      deal.waiting.push_back(which[i]);
      auto& error = passes ? deal.lost : deal.final;
      if (passes || !error) error = answer.error();
    }
  }
}

Result<std::vector<std::vector<Rollout>>> ServerPool::blocking_roll_out(
    std::span<const RolloutRequest> requests, std::uint64_t vocab_size) {
  Deal deal{.requests = requests, .vocab_size = vocab_size, .answers = {}, .mutex = {}};
  deal.answers.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) deal.waiting.push_back(i);
  while (!deal.waiting.empty()) {
    WEFT_TRY_VOID(blocking_take_back());
    WEFT_TRY_VOID(blocking_wait_for_one(deal.lost));
    const std::vector<Server*> up = up_servers();
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < up.size(); ++i) {
        threads.emplace_back([&, i] {
          set_thread_name(fmt::format("weft-roll-{}", i % 10'000).c_str());
          blocking_work(*up[i], up.size(), deal);
        });
      }
    }
    if (deal.final) return std::move(*deal.final);
    const std::lock_guard lock(mutex_);
    counts_.redealt += deal.waiting.size();
  }
  return std::move(deal.answers);
}

Result<PublishReport> ServerPool::blocking_publish(std::shared_ptr<const WeightSet> weights,
                                                   const std::string& label,
                                                   const std::string& on_update) {
  PublishReport report;
  std::optional<Error> lost;
  WEFT_TRY_VOID(blocking_take_back());
  {
    const std::lock_guard lock(pushes_);
    weights_ = std::move(weights);
    label_ = label;
    {
      const std::lock_guard naming(mutex_);
      labels_.push_back(label);
      if (labels_.size() > kKnownLabels) labels_.pop_front();
    }
    std::vector<bool> left_out;
    for (const auto& server : servers_) left_out.push_back(!server->is_up);
    auto results = publisher_->blocking_publish(tensor_views(*weights_),
                                                push_options(label, on_update), left_out);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (left_out[i]) continue;
      if (results[i]) {
        add(report, *results[i]);
        continue;
      }
      Error error =
          std::move(results[i])
              .error()
              .with_context(fmt::format("publishing {} to {}", label, servers_[i]->text()));
      if (!is_passing(error.code())) return error;
      lose(*servers_[i], error);
      lost = std::move(error);
    }
  }
  WEFT_TRY_VOID(blocking_wait_for_one(lost));
  return report;
}

EngineTotals ServerPool::blocking_engine_totals() {
  EngineTotals totals;
  for (Server* const server : up_servers()) {
    const auto page = server->probe->blocking_send(get_request("/metrics"));
    if (!page || page->status != 200) continue;
    totals.steps += metric_value(page->body, "weft_engine_steps_total");
    totals.seconds += metric_value(page->body, "weft_engine_step_seconds_total");
  }
  return totals;
}

PoolCounts ServerPool::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace weft
