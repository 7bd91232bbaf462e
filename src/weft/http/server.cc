#include "weft/http/server.h"

#include <algorithm>
#include <csignal>
#include <exception>

#include <boost/asio/co_spawn.hpp>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/base/log.h"
#include "weft/http/listening-inl.h"
#include "weft/http/session-inl.h"

namespace weft::http {
namespace {

struct OnExit {  // of a coroutine: nothing is thrown on purpose, so say what was
  void operator()(const std::exception_ptr& thrown) const {
    if (!thrown) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      log_error("http: a connection ended with an exception: {}", error.what());
    }
  }
};

// sendfile(2) on a connection that broke raises SIGPIPE in its thread, and has no flag against it.
void block_broken_pipes() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

void Loop::start(unsigned index) {
  auto task = sweep();
  net::co_spawn(io, std::move(task), OnExit());
  thread = std::thread([this, index] {
    set_thread_name(fmt::format("weft-io-{}", index).c_str());
    block_broken_pipes();
    io.run();
  });
}

void Loop::join() {
  if (thread.joinable()) thread.join();
  {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  io.restart();
  io.poll();  // what was posted after the thread had ended
}

net::awaitable<void> Loop::sweep() {
  constexpr std::chrono::milliseconds kInterval{250};
  while (work) {
    sweep_timer.expires_after(kInterval);
    auto [failed] = co_await sweep_timer.async_wait(kAwait);
    if (failed) continue;
    const Clock::time_point now = Clock::now();
    for (Session* session : sessions) session->check_deadline(now);
  }
}

namespace {

struct Listener {
  Acceptor acceptor;
  const Entrance& entrance;
  std::string url;  // of admin_listen; "" for the first
};

class ServerImpl final : public Server {
 public:
  ServerImpl(std::shared_ptr<Shared> shared, std::vector<std::shared_ptr<Loop>> loops,
             std::vector<Listener> listeners)
      : shared_(std::move(shared)),
        loops_(std::move(loops)),
        listeners_(std::move(listeners)),
        port_(port_of(listeners_.front().acceptor)),
        admin_url_(listeners_.back().url) {
    for (Listener& listener : listeners_) {
      auto task = accept(listener);
      net::co_spawn(loops_.front()->io, std::move(task), OnExit());
    }
    for (std::size_t i = 0; i < loops_.size(); ++i) loops_[i]->start(static_cast<unsigned>(i));
  }
  ~ServerImpl() override { blocking_stop(std::chrono::milliseconds(0)); }

  std::uint16_t port() const override { return port_; }
  std::string admin_url() const override { return admin_url_; }
  std::size_t open_connections() const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->open_connections;
  }
  ServerCounts counts() const override;
  void blocking_stop(std::chrono::milliseconds grace) override;

 private:
  net::awaitable<void> accept(Listener& listener);
  void adopt(std::shared_ptr<Loop> loop, const Entrance& entrance, tcp::socket socket);
  void refuse(const Entrance& entrance, tcp::socket& socket);

  const std::shared_ptr<Shared> shared_;
  const std::vector<std::shared_ptr<Loop>> loops_;
  std::vector<Listener> listeners_;  // on loops_[0]
  const std::uint16_t port_;
  const std::string admin_url_;
  std::mutex stop_mutex_;
  bool stopped_ = false;  // under stop_mutex_
};

ServerCounts ServerImpl::counts() const {
  const Counters& counters = shared_->counters;
  ServerCounts counts;
  counts.open_connections = open_connections();
  counts.accepted = counters.accepted.load(std::memory_order_relaxed);
  counts.refused = counters.refused.load(std::memory_order_relaxed);
  counts.timed_out = counters.timed_out.load(std::memory_order_relaxed);
  for (std::size_t status = 0; status < counters.responses.size(); ++status) {
    const std::uint64_t number = counters.responses[status].load(std::memory_order_relaxed);
    if (number > 0) counts.responses[static_cast<int>(status)] = number;
  }
  return counts;
}

net::awaitable<void> ServerImpl::accept(Listener& listener) {
  Acceptor& acceptor = listener.acceptor;
  constexpr std::chrono::milliseconds kPause{100};
  net::steady_timer pause(loops_.front()->io);
  bool complained = false;
  for (std::size_t next = 0; acceptor.is_open(); next = (next + 1) % loops_.size()) {
    auto [failed, accepted] = co_await acceptor.async_accept(kAwait);
    if (!acceptor.is_open()) break;
    tcp::socket socket(loops_[next]->io);
    // What is done with a connection is the same for all kinds of them.
    if (!failed) socket.assign(tcp::v4(), accepted.release(), failed);
    if (failed) {
      // Out of descriptors or memory, mostly: give others time to release some.
      if (!complained) log_warning("http: cannot accept a connection: {}", failed.message());
      complained = true;
      pause.expires_after(kPause);
      auto [cancelled] = co_await pause.async_wait(kAwait);
      static_cast<void>(cancelled);
      continue;
    }
    complained = false;
    adopt(loops_[next], listener.entrance, std::move(socket));
  }
}

// There is room for these few bytes in a new socket's buffer; a client that sent its request
// already may see a reset instead.
void ServerImpl::refuse(const Entrance& entrance, tcp::socket& socket) {
  constexpr std::string_view kBusy =
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
      "Connection: close\r\n\r\n";
  shared_->counters.refused.fetch_add(1, std::memory_order_relaxed);
  if (entrance.tls) return;  // it would not understand
  ::send(socket.native_handle(), kBusy.data(), kBusy.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void ServerImpl::adopt(std::shared_ptr<Loop> loop, const Entrance& entrance, tcp::socket socket) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->open_connections >= shared_->options.max_connections) {
      return refuse(entrance, socket);
    }
    ++shared_->open_connections;
  }
  shared_->counters.accepted.fetch_add(1, std::memory_order_relaxed);
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  loop->post([loop, &entrance, socket = std::move(socket)]() mutable {
    if (loop->draining) return loop->shared->release_connection();
    auto session = std::make_shared<Session>(loop, entrance, std::move(socket));
    auto task = Session::run(std::move(session));
    net::co_spawn(loop->io, std::move(task), OnExit());
  });
}

void ServerImpl::blocking_stop(std::chrono::milliseconds grace) {
  const std::lock_guard once(stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  loops_.front()->post([this] {
    for (Listener& listener : listeners_) {
      error_code ignored;
      listener.acceptor.close(ignored);
      if (listener.url.starts_with(kUnixPrefix))
        ::unlink(listener.url.c_str() + kUnixPrefix.size());
    }
  });
  for (const auto& loop : loops_) {
    loop->post([loop = loop.get()] {
      loop->draining = true;
      for (Session* session : loop->sessions) session->stop();
    });
  }
  {
    std::unique_lock lock(shared_->mutex);
    shared_->none_open.wait_for(lock, grace, [&] { return shared_->open_connections == 0; });
  }
  for (const auto& loop : loops_) {
    loop->post([loop = loop.get()] {
      for (Session* session : loop->sessions) session->close();
      loop->work.reset();
      loop->sweep_timer.cancel();
    });
  }
  for (const auto& loop : loops_) loop->join();
  listeners_.clear();
}

// The entrances of a server, in this order: for all, and the one of admin_listen where that is set.
Result<std::vector<Entrance>> make_entrances(const ServerOptions& options,
                                             std::vector<Route> routes) {
  std::vector<Entrance> entrances;
  if (options.admin_listen.empty()) {
    WEFT_TRY(auto all, Router::create(std::move(routes)));
    entrances.push_back({std::move(all), options.tls});
    return entrances;
  }
  std::vector<Route> others;
  std::ranges::copy_if(routes, std::back_inserter(others),
                       [](const Route& route) { return route.access != Access::kAdmin; });
  WEFT_TRY(auto open, Router::create(std::move(others)));
  entrances.push_back({std::move(open), options.tls});
  WEFT_TRY(auto all, Router::create(std::move(routes)));
  const bool is_local = options.admin_listen.starts_with(kUnixPrefix);
  entrances.push_back({std::move(all), is_local ? nullptr : options.tls});
  return entrances;
}

// A listener for each entrance.
Result<std::vector<Listener>> listen(net::io_context& io, const ServerOptions& options,
                                     const std::vector<Entrance>& entrances) {
  std::vector<Listener> listeners;
  WEFT_TRY(auto first, listen_at(io, options.host, options.port));
  listeners.push_back({std::move(first), entrances[0], ""});
  if (entrances.size() == 1) return listeners;
  if (options.admin_listen.starts_with(kUnixPrefix)) {
    WEFT_TRY(auto local, listen_at_path(io, options.admin_listen.substr(kUnixPrefix.size())));
    listeners.push_back({std::move(local), entrances[1], options.admin_listen});
    return listeners;
  }
  const auto at = parse_address(options.admin_listen, 0);
  if (!at) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("`{}`: expected HOST:PORT or unix:PATH: {}", options.admin_listen,
                             at.error().message()));
  }
  WEFT_TRY(auto other, listen_at(io, at->host, at->port));
  Url url;
  url.scheme = options.tls ? "https" : "http";
  url.host = at->host;
  url.port = port_of(other);
  listeners.push_back({std::move(other), entrances[1], url.text()});
  return listeners;
}

// Returns: the number of files this process may have open.
std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : before;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, std::vector<Route> routes) {
  if (options.io_threads == 0) {
    return Error(ErrorCode::kInvalidArgument, "io_threads must be at least 1", "io_threads");
  }
  WEFT_TRY(auto entrances, make_entrances(options, std::move(routes)));
  const std::size_t descriptors = raise_descriptor_limit();
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->options.max_connections =
      std::min(options.max_connections, descriptors - descriptors / 8);
  shared->entrances = std::move(entrances);
  std::vector<std::shared_ptr<Loop>> loops;
  for (unsigned i = 0; i < options.io_threads; ++i) loops.push_back(std::make_shared<Loop>(shared));
  WEFT_TRY(auto listeners, listen(loops.front()->io, options, shared->entrances));
  return std::unique_ptr<Server>(
      std::make_unique<ServerImpl>(std::move(shared), std::move(loops), std::move(listeners)));
}

}  // namespace weft::http
