#pragma once
// A connection of the server and the thread it lives on; what server.cc, session.cc and exchange.cc
// share. For those three only.

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "weft/http/router.h"
#include "weft/http/socket_io-inl.h"

namespace weft::http {

class Session;

// Numbers for metrics, nothing waits for them: relaxed is enough.
struct Counters {
  std::atomic<std::uint64_t> accepted = 0;
  std::atomic<std::uint64_t> refused = 0;
  std::atomic<std::uint64_t> timed_out = 0;
  std::array<std::atomic<std::uint64_t>, 600> responses{};  // by status

  void count_response(int status) {
    const auto index = static_cast<std::size_t>(status);
    if (index < responses.size()) responses[index].fetch_add(1, std::memory_order_relaxed);
  }
};

// An address that a server listens on, and what it answers there.
struct Entrance {
  Router router;
  std::shared_ptr<const TlsContext> tls;  // or null
};

// What all connections of a server share. Immutable but for the counts.
struct Shared {
  ServerOptions options;
  std::vector<Entrance> entrances;
  Counters counters;

  std::mutex mutex;
  std::condition_variable none_open;
  std::size_t open_connections = 0;  // under mutex

  void release_connection() {
    const std::lock_guard lock(mutex);
    if (--open_connections == 0) none_open.notify_all();
  }
};

// One I/O thread: its io_context and the connections that live on it. Only post() is for other
// threads.
class Loop : public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(std::shared_ptr<Shared> state) : shared(std::move(state)) {}

  // Runs `task` on this loop's thread, soon. Returns false, without running it, when the loop has
  // ended: an Exchange may outlive its server.
  template <typename Task>
  bool post(Task&& task) {
    const std::lock_guard lock(mutex_);
    if (!open_) return false;
    net::post(io, std::forward<Task>(task));
    return true;
  }
  bool is_this_thread() { return io.get_executor().running_in_this_thread(); }

  void start(unsigned index);
  // Waits until the thread ends, which it does when no connection is left.
  void join();
  net::awaitable<void> sweep();

  std::shared_ptr<Shared> shared;
  net::io_context io{1};
  std::thread thread;

  // On the loop's thread only.
  std::unordered_set<Session*> sessions;
  bool draining = false;
  net::steady_timer sweep_timer{io};
  std::optional<net::executor_work_guard<net::io_context::executor_type>> work{io.get_executor()};

 private:
  std::mutex mutex_;
  bool open_ = true;  // under mutex_
};

// The answer to one request, as far as it has been handed over. On the I/O thread, but for the
// atomics.
struct Answer {
  bool started = false;    // `head` is there
  bool streaming = false;  // the body comes in `pieces`
  bool complete = false;   // nothing more will come
  bool over = false;       // sent, or the connection is gone: whatever else comes is dropped
  bool gone = false;       // over before it was complete
  bool closes_at_stop = false;
  Response head;
  std::vector<BodyPart> parts;
  std::shared_ptr<const void> keep_alive;
  std::deque<std::string> pieces;
  std::function<void()> closed;

  std::atomic<int> posted = 0;                // calls on their way to the I/O thread
  std::atomic<std::size_t> queued_bytes = 0;  // a limit, not a signal: relaxed is enough
  std::atomic<bool> cut = false;
};

// One connection. On its loop's thread only.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // `entrance`: one of the server's.
  Session(std::shared_ptr<Loop> owner, const Entrance& entrance, tcp::socket socket);

  // Until the connection has ended. Holds the session, which is in loop->sessions meanwhile.
  static net::awaitable<void> run(std::shared_ptr<Session> self);

  // The clock struck: closes the connection if it has been silent for too long.
  void check_deadline(Clock::time_point now);
  // The server stops: closes the connection unless something is under way that shall finish.
  void stop();
  // Ends everything at once; the client's answer, if one is pending, is gone.
  void close();
  void wake() { wake_.cancel(); }

  const std::shared_ptr<Loop> loop;

 private:
  enum class Phase { kIdle, kHead, kBody, kAnswer, kSend, kLinger };

  net::awaitable<bool> secure();
  net::awaitable<bool> serve_one();
  net::awaitable<bool> serve_route(RequestHead& head, const Route& route);
  net::awaitable<bool> serve_bulk(RequestHead& head, const Route& route,
                                  std::shared_ptr<Answer> answer,
                                  std::shared_ptr<Exchange> exchange);
  net::awaitable<bool> serve_buffered(RequestHead& head, const Route& route,
                                      std::shared_ptr<Answer> answer,
                                      std::shared_ptr<Exchange> exchange);
  net::awaitable<bool> receive(const RequestHead& head, BodySink& sink,
                               std::shared_ptr<Answer> answer, bool& intact);
  // Answers by the server itself. Returns whether the connection can be used again.
  net::awaitable<bool> send_own(const RequestHead& head, Response response, bool keep_alive);
  net::awaitable<bool> send_answer(const RequestHead& head, std::shared_ptr<Answer> answer,
                                   bool keep_alive);
  net::awaitable<error_code> send_parts(const std::string& head_text,
                                        std::shared_ptr<Answer> answer);
  net::awaitable<bool> send_pieces(std::shared_ptr<Answer> answer, bool chunked);
  net::awaitable<void> wait_while(const std::function<bool()>& condition);
  net::awaitable<void> stop_watching();
  net::awaitable<void> linger();
  void watch();
  void lose(Answer& answer);

  const Entrance& entrance_;
  Stream stream_;
  Phase phase_ = Phase::kIdle;
  Clock::time_point head_began_;
  std::shared_ptr<Answer> answer_;  // the one that is pending
  net::steady_timer wake_;
  net::cancellation_signal stop_watch_;
  bool watching_ = false;
};

// The Exchange of the request whose answer is `answer`.
std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Session> session,
                                        std::shared_ptr<Answer> answer);

}  // namespace weft::http
