#include "weft/http/server.h"

#include <algorithm>
#include <csignal>
#include <exception>

#include <boost/asio/co_spawn.hpp>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "weft/base/log.h"
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

class ServerImpl final : public Server {
 public:
  ServerImpl(std::shared_ptr<Shared> shared, std::vector<std::shared_ptr<Loop>> loops,
             tcp::acceptor acceptor)
      : shared_(std::move(shared)),
        loops_(std::move(loops)),
        acceptor_(std::move(acceptor)),
        port_(acceptor_->local_endpoint().port()) {
    auto task = accept();
    net::co_spawn(loops_.front()->io, std::move(task), OnExit());
    for (std::size_t i = 0; i < loops_.size(); ++i) loops_[i]->start(static_cast<unsigned>(i));
  }
  ~ServerImpl() override { blocking_stop(std::chrono::milliseconds(0)); }

  std::uint16_t port() const override { return port_; }
  std::size_t open_connections() const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->open_connections;
  }
  ServerCounts counts() const override;
  void blocking_stop(std::chrono::milliseconds grace) override;

 private:
  net::awaitable<void> accept();
  void adopt(std::shared_ptr<Loop> loop, tcp::socket socket);
  void refuse(tcp::socket& socket);

  const std::shared_ptr<Shared> shared_;
  const std::vector<std::shared_ptr<Loop>> loops_;
  std::optional<tcp::acceptor> acceptor_;  // on loops_[0]
  const std::uint16_t port_;
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

net::awaitable<void> ServerImpl::accept() {
  constexpr std::chrono::milliseconds kPause{100};
  net::steady_timer pause(loops_.front()->io);
  bool complained = false;
  for (std::size_t next = 0; acceptor_->is_open(); next = (next + 1) % loops_.size()) {
    auto [failed, socket] = co_await acceptor_->async_accept(loops_[next]->io, kAwait);
    if (!acceptor_->is_open()) break;
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
    adopt(loops_[next], std::move(socket));
  }
}

// There is room for these few bytes in a new socket's buffer; a client that sent its request
// already may see a reset instead.
void ServerImpl::refuse(tcp::socket& socket) {
  constexpr std::string_view kBusy =
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
      "Connection: close\r\n\r\n";
  shared_->counters.refused.fetch_add(1, std::memory_order_relaxed);
  if (shared_->options.tls) return;  // it would not understand
  ::send(socket.native_handle(), kBusy.data(), kBusy.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void ServerImpl::adopt(std::shared_ptr<Loop> loop, tcp::socket socket) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->open_connections >= shared_->options.max_connections) return refuse(socket);
    ++shared_->open_connections;
  }
  shared_->counters.accepted.fetch_add(1, std::memory_order_relaxed);
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  loop->post([loop, socket = std::move(socket)]() mutable {
    if (loop->draining) return loop->shared->release_connection();
    auto session = std::make_shared<Session>(loop, std::move(socket));
    auto task = Session::run(std::move(session));
    net::co_spawn(loop->io, std::move(task), OnExit());
  });
}

void ServerImpl::blocking_stop(std::chrono::milliseconds grace) {
  const std::lock_guard once(stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  loops_.front()->post([this] {
    error_code ignored;
    acceptor_->close(ignored);
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
  acceptor_.reset();
}

Result<tcp::acceptor> listen(net::io_context& io, const ServerOptions& options) {
  error_code failed;
  const auto address =
      net::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, failed);
  if (failed) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("`{}` is no address to listen on: expected an IP address", options.host));
  }
  const tcp::endpoint endpoint(address, options.port);
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), failed);
  if (!failed) acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor.bind(endpoint, failed);
  if (!failed) acceptor.listen(net::socket_base::max_listen_connections, failed);
  if (!failed) return acceptor;
  if (failed == net::error::address_in_use) {
    return Error(ErrorCode::kConflict, fmt::format("port {} on {} is in use by another program",
                                                   options.port, options.host));
  }
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("cannot listen on {} port {}: {}", options.host, options.port, failed.message()));
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
  WEFT_TRY(auto router, Router::create(std::move(routes)));
  const std::size_t descriptors = raise_descriptor_limit();
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->options.max_connections =
      std::min(options.max_connections, descriptors - descriptors / 8);
  shared->router = std::move(router);
  std::vector<std::shared_ptr<Loop>> loops;
  for (unsigned i = 0; i < options.io_threads; ++i) loops.push_back(std::make_shared<Loop>(shared));
  WEFT_TRY(auto acceptor, listen(loops.front()->io, options));
  return std::unique_ptr<Server>(
      std::make_unique<ServerImpl>(std::move(shared), std::move(loops), std::move(acceptor)));
}

}  // namespace weft::http
