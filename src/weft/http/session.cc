#include <exception>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "weft/base/log.h"
#include "weft/http/access.h"
#include "weft/http/session-inl.h"

namespace weft::http {
namespace {

void run_handler(const std::function<void()>& handler, const std::function<void(Response)>& fail) {
  try {
    handler();
  } catch (const std::exception& thrown) {
    fail(error_response(Error(ErrorCode::kInternal, thrown.what())));
  }
}

}  // namespace

Session::Session(std::shared_ptr<Loop> owner, const Entrance& entrance, tcp::socket socket)
    : loop(std::move(owner)),
      entrance_(entrance),
      stream_(std::move(socket)),
      wake_(loop->io, Clock::time_point::max()) {}

void Session::check_deadline(Clock::time_point now) {
  constexpr std::chrono::seconds kLinger{2};
  constexpr std::chrono::milliseconds kSlow{100};
  const ServerOptions& options = loop->shared->options;
  const bool silent = now - stream_.last_active > options.idle_timeout;
  bool late = false;
  switch (phase_) {
    case Phase::kHead:
      late = now - head_began_ > options.header_timeout;
      break;
    case Phase::kBody:
      if (now - stream_.last_active > kSlow) stream_.relax();
      late = silent;
      break;
    case Phase::kSend:
      late = silent;
      break;
    case Phase::kIdle:
      if (silent) close();
      break;
    case Phase::kLinger:
      if (now - head_began_ > kLinger) close();
      break;
    case Phase::kAnswer:
      break;  // the handler may take its time
  }
  if (!late) return;
  loop->shared->counters.timed_out.fetch_add(1, std::memory_order_relaxed);
  close();
}

void Session::stop() {
  const bool waits = answer_ && answer_->closes_at_stop && !answer_->started;
  if (phase_ == Phase::kIdle || phase_ == Phase::kHead || waits) close();
}

void Session::close() {
  error_code ignored;
  if (phase_ == Phase::kIdle && stream_.tls && stream_.socket.is_open()) stream_.tls->finish();
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
  if (self->entrance_.tls) again = co_await self->secure();
  while (again && self->stream_.socket.is_open()) {
    again = co_await self->serve_one();
  }
  if (self->stream_.socket.is_open()) co_await self->linger();
  self->close();
}

// We send nothing after the client's last step of the handshake (no session tickets), so its
// acknowledgement would be delayed, and a client that keeps Nagle's algorithm holds its first
// request back until it comes: 40 ms.
void acknowledge_now(tcp::socket& socket) {
  const int on = 1;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

// The TLS handshake, in the time that a head has. Returns false when it failed.
net::awaitable<bool> Session::secure() {
  phase_ = Phase::kHead;
  head_began_ = Clock::now();
  error_code ignored;  // then the handshake fails
  stream_.socket.native_non_blocking(true, ignored);
  stream_.tls = entrance_.tls->accept(stream_.socket.native_handle());
  const auto done = co_await shake_hands(stream_);
  if (done) {
    acknowledge_now(stream_.socket);
    co_return true;
  }
  log_debug("http: a connection has no TLS: {}", done.error().message());
  stream_.tls = nullptr;  // what still comes is dropped as it is
  if (done.error().code() != ErrorCode::kInvalidArgument) co_return false;
  const RequestHead unread;
  Response response = error_response(done.error());
  const bool again = co_await send_own(unread, std::move(response), false);
  co_return again;
}

// Closing with unread input would reset the connection and could take the answer with it.
net::awaitable<void> Session::linger() {
  constexpr std::size_t kDropBytes = 16u << 20;
  phase_ = Phase::kLinger;
  head_began_ = Clock::now();
  error_code failed;
  if (stream_.tls) stream_.tls->finish();
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
  auto done = [self = shared_from_this()](error_code failed) {
    self->watching_ = false;
    if (!failed) failed = self->stream_.read_now();
    if (failed == net::error::would_block) failed = error_code();
    if (failed && failed != net::error::operation_aborted) {
      self->close();
    } else if (!failed && self->answer_ && !self->answer_->over) {
      self->watch();
    }
    self->wake();
  };
  stream_.socket.async_wait(tcp::socket::wait_read,
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
    const error_code failed = co_await fill_when_ready(stream_);
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
  const auto match = entrance_.router.match(head.request);
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
    const bool is_api =
        route.access == Access::kApi && refusal->code() == ErrorCode::kUnauthenticated;
    Response response = is_api ? json_response(R"({"error":"Unauthorized"})", 401)  // as vLLM
                               : error_response(*refusal);
    const bool again = co_await send_own(head, std::move(response), head.framing.empty());
    co_return again;
  }
  auto answer = std::make_shared<Answer>();
  answer_ = answer;
  auto exchange = make_exchange(shared_from_this(), answer);
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
  loop->shared->counters.count_response(answer->head.status);
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
  for (const BodyPart& part : answer->parts) {
    if (!part.file) outgoing.add(part.bytes);
    if (!part.file || part.size_bytes == 0) continue;
    error_code failed = co_await write_all(stream_, outgoing, nullptr);
    if (failed) co_return failed;
    failed = co_await send_file(stream_, *part.file, part.offset_bytes, part.size_bytes);
    if (failed == net::error::eof) {
      log_error("http: an answer is cut short: {} ended early", part.file->path().string());
    }
    if (failed) co_return failed;
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

}  // namespace weft::http
