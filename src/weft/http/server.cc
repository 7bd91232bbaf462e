#include "weft/http/server.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "weft/base/log.h"
#include "weft/http/access.h"
#include "weft/http/router.h"
#include "weft/http/socket_io-inl.h"

namespace weft::http {
namespace {

class Session;

// What all connections of a server share. Immutable but for the count.
struct Shared {
  ServerOptions options;
  Router router;

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
  Session(std::shared_ptr<Loop> owner, tcp::socket socket);

  // Until the connection has ended. Holds the session, which is in loop->sessions meanwhile.
  static net::awaitable<void> run(std::shared_ptr<Session> self);

  // The clock struck: closes the connection if it has been silent for too long.
  void check_deadline(Clock::time_point now);
  void close_if_idle();
  // Ends everything at once; the client's answer, if one is pending, is gone.
  void close();
  void wake() { wake_.cancel(); }

  const std::shared_ptr<Loop> loop;

 private:
  enum class Phase { kIdle, kHead, kBody, kAnswer, kSend, kLinger };

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

  Stream stream_;
  Phase phase_ = Phase::kIdle;
  Clock::time_point head_began_;
  std::shared_ptr<Answer> answer_;  // the one that is pending
  net::steady_timer wake_;
  net::cancellation_signal stop_watch_;
  bool watching_ = false;
};

void run_handler(const std::function<void()>& handler, const std::function<void(Response)>& fail) {
  try {
    handler();
  } catch (const std::exception& thrown) {
    fail(error_response(Error(ErrorCode::kInternal, thrown.what())));
  }
}

class ExchangeImpl final : public Exchange {
 public:
  ExchangeImpl(std::shared_ptr<Session> session, std::shared_ptr<Answer> answer)
      : loop_(session->loop), session_(std::move(session)), answer_(std::move(answer)) {}

  ~ExchangeImpl() override {
    apply([](Session& session, Answer& answer) {
      if (answer.complete) return;
      if (answer.started) return session.close();  // a stream without an end must not look whole
      answer.head = error_response(Error(ErrorCode::kInternal, "the request was not answered"));
      answer.started = answer.complete = true;
    });
  }

  void respond(Response response) override { respond_from(std::move(response), {}, nullptr); }

  void respond_from(Response head, std::vector<BodyPart> parts,
                    std::shared_ptr<const void> keep_alive) override {
    apply([head = std::move(head), parts = std::move(parts), keep_alive = std::move(keep_alive)](
              Session&, Answer& answer) mutable {
      if (answer.started) return;
      answer.head = std::move(head);
      answer.parts = std::move(parts);
      answer.keep_alive = std::move(keep_alive);
      answer.started = answer.complete = true;
    });
  }

  void begin_stream(Response head) override {
    apply([head = std::move(head)](Session&, Answer& answer) mutable {
      if (answer.started) return;
      answer.head = std::move(head);
      answer.head.body.clear();
      answer.started = answer.streaming = true;
    });
  }

  void write(std::string piece) override {
    if (piece.empty() || answer_->cut.load(std::memory_order_relaxed)) return;
    if (answer_->queued_bytes.fetch_add(piece.size(), std::memory_order_relaxed) >
        kMaxQueuedBytes) {
      answer_->cut.store(true, std::memory_order_relaxed);
      apply([](Session& session, Answer&) { session.close(); });
      return;
    }
    apply([piece = std::move(piece)](Session&, Answer& answer) mutable {
      if (!answer.complete) answer.pieces.push_back(std::move(piece));
    });
  }

  void end() override {
    apply([](Session&, Answer& answer) { answer.complete = true; });
  }

  void close() override {
    apply([](Session& session, Answer&) { session.close(); });
  }

  void on_close(std::function<void()> closed) override {
    auto callback = std::make_shared<std::function<void()>>(std::move(closed));
    const bool alive = run_on_loop([answer = answer_, callback] {
      if (answer->gone) return (*callback)();
      if (!answer->over) answer->closed = std::move(*callback);
    });
    if (!alive) (*callback)();
  }

 private:
  // At once if this is the loop's thread and no earlier call is still on its way there: calls must
  // take effect in order, the destructor's last. Returns false when the loop has ended.
  template <typename Task>
  bool run_on_loop(Task&& task) {
    if (loop_->is_this_thread() && answer_->posted == 0) {
      task();
      return true;
    }
    ++answer_->posted;
    return loop_->post([answer = answer_, task = std::forward<Task>(task)]() mutable {
      --answer->posted;
      task();
    });
  }
  // Changes the answer on the loop's thread and tells the session.
  template <typename Change>
  void apply(Change&& change) {
    run_on_loop(
        [session = session_, answer = answer_, change = std::forward<Change>(change)]() mutable {
          if (answer->over) return;
          change(*session, *answer);
          session->wake();
        });
  }

  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Answer> answer_;
};

// --- Loop

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

void Loop::start(unsigned index) {
  auto task = sweep();
  net::co_spawn(io, std::move(task), OnExit());
  thread = std::thread([this, index] {
    set_thread_name(fmt::format("weft-io-{}", index).c_str());
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

// --- Session

Session::Session(std::shared_ptr<Loop> owner, tcp::socket socket)
    : loop(std::move(owner)),
      stream_(std::move(socket)),
      wake_(loop->io, Clock::time_point::max()) {}

void Session::check_deadline(Clock::time_point now) {
  constexpr std::chrono::seconds kLinger{2};
  const ServerOptions& options = loop->shared->options;
  const auto silent = now - stream_.last_active;
  switch (phase_) {
    case Phase::kHead:
      if (now - head_began_ > options.header_timeout) close();
      break;
    case Phase::kIdle:
    case Phase::kBody:
    case Phase::kSend:
      if (silent > options.idle_timeout) close();
      break;
    case Phase::kLinger:
      if (now - head_began_ > kLinger) close();
      break;
    case Phase::kAnswer:
      break;  // the handler may take its time
  }
}

void Session::close_if_idle() {
  if (phase_ == Phase::kIdle || phase_ == Phase::kHead) close();
}

void Session::close() {
  error_code ignored;
  stream_.socket.close(ignored);
  if (answer_) lose(*answer_);
  wake();
}

void Session::lose(Answer& answer) {
  if (answer.over) return;
  answer.over = answer.gone = true;
  answer.cut.store(true, std::memory_order_relaxed);
  if (auto closed = std::exchange(answer.closed, nullptr)) closed();
}

// Holds a session's place among the open connections. An Exchange may keep the session itself for
// longer.
class Place {
 public:
  explicit Place(Session& session) : session_(session) {
    session_.loop->sessions.insert(&session_);
  }
  ~Place() {
    session_.loop->sessions.erase(&session_);
    session_.loop->shared->release_connection();
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  Session& session_;
};

net::awaitable<void> Session::run(std::shared_ptr<Session> self) {
  const Place place(*self);
  bool again = true;
  while (again && self->stream_.socket.is_open()) {
    again = co_await self->serve_one();
  }
  if (self->stream_.socket.is_open()) co_await self->linger();
  self->close();
}

// Closing with unread input would reset the connection and could take the answer with it.
net::awaitable<void> Session::linger() {
  constexpr std::size_t kDropBytes = 16u << 20;
  phase_ = Phase::kLinger;
  head_began_ = Clock::now();
  error_code failed;
  stream_.socket.shutdown(tcp::socket::shutdown_send, failed);
  for (std::size_t dropped = 0; dropped < kDropBytes && !failed;) {
    stream_.consume(stream_.unread().size());
    failed = co_await fill(stream_);
    dropped += stream_.unread().size();
  }
}

net::awaitable<void> Session::wait_while(const std::function<bool()>& condition) {
  while (condition()) {
    auto [cancelled] = co_await wake_.async_wait(kAwait);
    static_cast<void>(cancelled);
  }
}

// Reads ahead while a handler works: the next request may come, or the end of the connection.
void Session::watch() {
  constexpr std::size_t kMaxAheadBytes = 1u << 20;
  if (watching_ || stream_.unread().size() > kMaxAheadBytes) return;
  watching_ = true;
  auto done = [self = shared_from_this()](error_code failed, std::size_t size) {
    self->watching_ = false;
    self->stream_.commit(size);
    if (failed && failed != net::error::operation_aborted) {
      self->close();
    } else if (!failed && self->answer_ && !self->answer_->over) {
      self->watch();
    }
    self->wake();
  };
  stream_.socket.async_read_some(stream_.prepare(),
                                 net::bind_cancellation_slot(stop_watch_.slot(), std::move(done)));
}

net::awaitable<void> Session::stop_watching() {
  stop_watch_.emit(net::cancellation_type::terminal);
  const std::function<bool()> watching = [this] { return watching_; };
  co_await wait_while(watching);
}

net::awaitable<bool> Session::serve_one() {
  phase_ = Phase::kIdle;
  if (loop->draining) co_return false;
  while (stream_.unread().starts_with("\r\n")) stream_.consume(2);  // RFC 9112 2.2
  if (stream_.unread().empty()) {
    const error_code failed = co_await fill(stream_);
    if (failed) {
      close();
      co_return false;
    }
  }
  phase_ = Phase::kHead;
  head_began_ = Clock::now();
  while (stream_.unread().starts_with("\r\n")) stream_.consume(2);
  RequestHead head;
  const auto size = co_await read_head(stream_);
  if (!size && size.error().code() == ErrorCode::kDisconnected) {
    close();
    co_return false;
  }
  auto parsed = size ? parse_request_head(stream_.unread().substr(0, *size)) : size.error();
  if (!parsed) {
    Response response = error_response(parsed.error());
    if (parsed.error().code() == ErrorCode::kTooLarge) response.status = 431;
    const bool again = co_await send_own(head, std::move(response), false);
    co_return again;
  }
  stream_.consume(*size);
  head = std::move(*parsed);
  const auto match = loop->shared->router.match(head.request);
  const Route* route = match ? match->route : nullptr;
  if (route != nullptr) {
    const bool again = co_await serve_route(head, *route);
    co_return again;
  }
  Response response;
  if (!match) {
    response = error_response(match.error());
  } else if (match->allow.empty()) {
    response = json_response(R"({"detail":"Not Found"})", 404);
  } else {
    response = json_response(R"({"detail":"Method Not Allowed"})", 405);
    response.headers.add("Allow", match->allow);
  }
  const bool again = co_await send_own(head, std::move(response), head.framing.empty());
  co_return again;
}

// Why the request is not run, from its head alone.
std::optional<Error> try_refusal(const RequestHead& head, const Route& route,
                                 const ServerKeys& keys) {
  if (!has_access(head.request, route.access, keys)) {
    return Error(ErrorCode::kUnauthenticated, "expected Authorization: Bearer with the right key");
  }
  const auto coding = head.request.headers.try_get("Content-Encoding");
  if (coding && !equal_ignoring_case(*coding, "identity")) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("Content-Encoding {}: send it plain", *coding));
  }
  if (route.handler && head.framing.length_bytes > route.body_limit_bytes) {
    return Error(ErrorCode::kTooLarge,
                 fmt::format("the body is over {} bytes", route.body_limit_bytes));
  }
  return std::nullopt;
}

net::awaitable<bool> Session::serve_route(RequestHead& head, const Route& route) {
  const auto refusal = try_refusal(head, route, loop->shared->options.keys);
  if (refusal) {
    Response response = error_response(*refusal);
    const bool again = co_await send_own(head, std::move(response), head.framing.empty());
    co_return again;
  }
  auto answer = std::make_shared<Answer>();
  answer_ = answer;
  std::shared_ptr<Exchange> exchange = std::make_shared<ExchangeImpl>(shared_from_this(), answer);
  bool again = false;
  if (route.handler) {
    again = co_await serve_buffered(head, route, answer, std::move(exchange));
  } else {
    again = co_await serve_bulk(head, route, answer, std::move(exchange));
  }
  if (!again && !answer->over) lose(*answer);
  answer->over = true;
  answer_ = nullptr;
  co_return again;
}

net::awaitable<bool> Session::serve_buffered(RequestHead& head, const Route& route,
                                             std::shared_ptr<Answer> answer,
                                             std::shared_ptr<Exchange> exchange) {
  StringSink sink(route.body_limit_bytes);
  bool intact = true;
  if (!head.framing.empty()) {
    const bool received = co_await receive(head, sink, answer, intact);
    if (!received) co_return false;
  }
  if (intact) {
    sink.finish();
    head.request.body = sink.take();
    const std::function<void()> handler = [&] { route.handler(head.request, exchange); };
    run_handler(handler, [&](Response failed) { exchange->respond(std::move(failed)); });
  }
  exchange = nullptr;
  const bool again = co_await send_answer(head, answer, intact);
  co_return again;
}

net::awaitable<bool> Session::serve_bulk(RequestHead& head, const Route& route,
                                         std::shared_ptr<Answer> answer,
                                         std::shared_ptr<Exchange> exchange) {
  std::unique_ptr<BodySink> sink;
  const std::function<void()> open = [&] {
    auto made = route.bulk_handler(head.request, exchange);
    if (made) {
      sink = std::move(*made);
    } else {
      exchange->respond(error_response(made.error()));
    }
  };
  run_handler(open, [&](Response failed) { exchange->respond(std::move(failed)); });
  exchange = nullptr;
  bool intact = head.framing.empty();
  if (sink) {
    const bool received = co_await receive(head, *sink, answer, intact);
    if (!received) co_return false;
    if (intact) sink->finish();
  }
  sink = nullptr;
  const bool again = co_await send_answer(head, answer, intact);
  co_return again;
}

// Reads the body into `sink`. Returns false when the connection is gone. `intact`: all of it came;
// else the answer to give instead is in place.
net::awaitable<bool> Session::receive(const RequestHead& head, BodySink& sink,
                                      std::shared_ptr<Answer> answer, bool& intact) {
  phase_ = Phase::kBody;
  stream_.last_active = Clock::now();
  intact = true;
  if (head.expects_continue && !head.framing.empty() && stream_.unread().empty()) {
    Outgoing go_on;
    go_on.add("HTTP/1.1 100 Continue\r\n\r\n");
    const error_code failed = co_await write_all(stream_, go_on, nullptr);
    static_cast<void>(failed);  // then reading fails too
  }
  const std::function<bool()> answered = [&] { return answer->started || answer->over; };
  auto failure = co_await read_body(stream_, head.framing, sink, answered);
  if (!failure && !answer->started && !answer->over) co_return true;
  intact = false;
  if (!failure && answer->over) {
    failure.emplace(BodyFailure::Cause::kConnection,
                    Error(ErrorCode::kDisconnected, "the connection was closed"));
  }
  if (failure && failure->cause != BodyFailure::Cause::kSink) sink.abort(failure->error);
  if (failure && failure->cause == BodyFailure::Cause::kConnection) {
    close();
    co_return false;
  }
  if (!answer->started) {
    answer->head = error_response(failure->error);
    answer->started = answer->complete = true;
  }
  co_return !answer->over;
}

net::awaitable<bool> Session::send_own(const RequestHead& head, Response response,
                                       bool keep_alive) {
  auto answer = std::make_shared<Answer>();
  answer->head = std::move(response);
  answer->started = answer->complete = true;
  const bool again = co_await send_answer(head, answer, keep_alive);
  co_return again;
}

// Waits for the answer and sends it. Returns whether the connection can be used again.
net::awaitable<bool> Session::send_answer(const RequestHead& head, std::shared_ptr<Answer> answer,
                                          bool keep_alive) {
  phase_ = Phase::kAnswer;
  if (!answer->complete) watch();
  const std::function<bool()> pending = [&] { return !answer->started && !answer->over; };
  co_await wait_while(pending);
  if (answer->over) co_return false;
  phase_ = Phase::kSend;
  stream_.last_active = Clock::now();
  const bool no_body = head.request.method == "HEAD" || status_has_no_body(answer->head.status);
  const bool chunked = answer->streaming && !head.http_1_0;
  keep_alive = keep_alive && head.keep_alive && !loop->draining && (chunked || !answer->streaming);
  std::uint64_t body_bytes = answer->head.body.size();
  for (const BodyPart& part : answer->parts) body_bytes += part.size();
  BodyKind kind = BodyKind::kLength;
  if (answer->streaming) kind = chunked ? BodyKind::kChunked : BodyKind::kUntilClose;

  const std::string text = response_head_text(answer->head, kind, body_bytes, keep_alive);
  if (no_body) answer->head.body.clear(), answer->parts.clear();
  const error_code failed = co_await send_parts(text, answer);
  bool sent = !failed && !answer->over;
  if (sent && answer->streaming && !no_body) sent = co_await send_pieces(answer, chunked);
  if (!sent) close();
  if (sent) answer->over = true;
  answer->parts.clear();
  answer->keep_alive = nullptr;
  answer->closed = nullptr;
  co_await stop_watching();
  co_return sent&& keep_alive;
}

// Sends the head, the body that lies beside it, and the parts.
net::awaitable<error_code> Session::send_parts(const std::string& head_text,
                                               std::shared_ptr<Answer> answer) {
  Outgoing outgoing;
  outgoing.add(head_text);
  outgoing.add(answer->head.body);
  std::vector<std::byte> piece;  // of a file
  for (const BodyPart& part : answer->parts) {
    if (!part.file) outgoing.add(part.bytes);
    for (std::uint64_t done = 0; part.file && done < part.size_bytes; done += piece.size()) {
      // What is still to be sent may lie in `piece`.
      error_code failed = co_await write_all(stream_, outgoing, nullptr);
      piece.resize(std::min<std::uint64_t>(part.size_bytes - done, kMaxTransferBytes));
      const auto read = part.file->blocking_read_at(part.offset_bytes + done, piece);
      if (!read) {
        log_error("http: an answer is cut short: {}", read.error().message());
        failed = net::error::eof;
      }
      if (failed || answer->over) co_return failed;
      outgoing.add(piece);
    }
  }
  const error_code failed = co_await write_all(stream_, outgoing, nullptr);
  co_return failed;
}

net::awaitable<bool> Session::send_pieces(std::shared_ptr<Answer> answer, bool chunked) {
  const std::function<bool()> nothing = [&] {
    return answer->pieces.empty() && !answer->complete && !answer->over;
  };
  while (true) {
    phase_ = Phase::kAnswer;
    co_await wait_while(nothing);
    if (answer->over) co_return false;
    phase_ = Phase::kSend;
    stream_.last_active = Clock::now();
    const std::deque<std::string> pieces = std::exchange(answer->pieces, std::deque<std::string>());
    const bool last = answer->complete;
    std::deque<std::string> sizes;  // of the chunks; a deque, since `outgoing` points into it
    std::size_t bytes = 0;
    Outgoing outgoing;
    for (const std::string& piece : pieces) {
      bytes += piece.size();
      if (chunked) outgoing.add(sizes.emplace_back(fmt::format("{:x}\r\n", piece.size())));
      outgoing.add(piece);
      if (chunked) outgoing.add("\r\n");
    }
    if (last && chunked) outgoing.add("0\r\n\r\n");
    const error_code failed = co_await write_all(stream_, outgoing, nullptr);
    answer->queued_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    if (failed || answer->over) co_return false;
    if (last) co_return true;
  }
}

// --- Server

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
  void blocking_stop(std::chrono::milliseconds grace) override;

 private:
  net::awaitable<void> accept();
  void adopt(std::shared_ptr<Loop> loop, tcp::socket socket);

  const std::shared_ptr<Shared> shared_;
  const std::vector<std::shared_ptr<Loop>> loops_;
  std::optional<tcp::acceptor> acceptor_;  // on loops_[0]
  const std::uint16_t port_;
  std::mutex stop_mutex_;
  bool stopped_ = false;  // under stop_mutex_
};

net::awaitable<void> ServerImpl::accept() {
  constexpr std::chrono::milliseconds kPause{100};
  net::steady_timer pause(loops_.front()->io);
  for (std::size_t next = 0; acceptor_->is_open(); next = (next + 1) % loops_.size()) {
    auto [failed, socket] = co_await acceptor_->async_accept(loops_[next]->io, kAwait);
    if (!acceptor_->is_open()) break;
    if (failed) {
      // Out of descriptors or memory, mostly: give others time to release some.
      log_warning("http: cannot accept a connection: {}", failed.message());
      pause.expires_after(kPause);
      auto [cancelled] = co_await pause.async_wait(kAwait);
      static_cast<void>(cancelled);
      continue;
    }
    adopt(loops_[next], std::move(socket));
  }
}

void ServerImpl::adopt(std::shared_ptr<Loop> loop, tcp::socket socket) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->open_connections >= shared_->options.max_connections) return;
    ++shared_->open_connections;
  }
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
      for (Session* session : loop->sessions) session->close_if_idle();
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

}  // namespace

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, std::vector<Route> routes) {
  if (options.io_threads == 0) {
    return Error(ErrorCode::kInvalidArgument, "io_threads must be at least 1", "io_threads");
  }
  WEFT_TRY(auto router, Router::create(std::move(routes)));
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->router = std::move(router);
  std::vector<std::shared_ptr<Loop>> loops;
  for (unsigned i = 0; i < options.io_threads; ++i) loops.push_back(std::make_shared<Loop>(shared));
  WEFT_TRY(auto acceptor, listen(loops.front()->io, options));
  return std::unique_ptr<Server>(
      std::make_unique<ServerImpl>(std::move(shared), std::move(loops), std::move(acceptor)));
}

}  // namespace weft::http
