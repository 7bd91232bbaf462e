#include "weft/http/client.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/base/guarded.h"
#include "weft/http/socket_io-inl.h"

namespace weft::http {
namespace {

using Parts = std::span<const std::span<const std::byte>>;
using Progress = std::function<void(std::uint64_t)>;
using Piece = std::function<bool(std::string_view)>;

// One exchange to run. What it points to outlives the run.
struct Job {
  const Request* request = nullptr;
  Parts parts;                   // sent instead of request->body if `bulk`
  BodySource* source = nullptr;  // sent instead of `parts`, or null
  bool bulk = false;
  const Progress* progress = nullptr;  // or null
  const Piece* piece = nullptr;        // or null
  BodySink* sink = nullptr;            // or null; neither of the two: the body is collected

  std::uint64_t body_bytes() const {
    if (!bulk) return request->body.size();
    if (source != nullptr) return source->size_bytes();
    std::uint64_t sum = 0;
    for (const auto& part : parts) sum += part.size();
    return sum;
  }
};

// A connection, with the deadline of what runs on it. One thread.
struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(net::io_context& io) : stream(tcp::socket(io)), resolver(io), timer(io) {}

  // Ends whatever runs here when `timeout` is over, unless disarm() or arm() come first.
  void arm(std::chrono::milliseconds timeout) {
    timer.expires_after(timeout);
    // A timer that went off just before it was cancelled still calls: hence the count.
    timer.async_wait([self = shared_from_this(), armed = ++arms](error_code cancelled) {
      if (cancelled || armed != self->arms) return;
      self->timed_out = true;
      self->resolver.cancel();
      error_code ignored;
      self->stream.socket.close(ignored);
    });
  }
  void disarm() {
    ++arms;
    timer.cancel();
  }

  Stream stream;
  tcp::resolver resolver;
  net::steady_timer timer;
  std::uint64_t arms = 0;
  bool kept = false;      // it served an earlier request
  bool answered = false;  // a byte of the answer came
  bool reusable = false;  // for another request
  bool reset = false;     // the peer refused what we sent: it has not read it
  bool timed_out = false;
};

// Hands pieces of a body to a callback.
class PieceSink final : public BodySink {
 public:
  explicit PieceSink(const Piece& piece) : piece_(piece), memory_(64u << 10) {}
  Result<std::span<std::byte>> buffer() override {
    return std::as_writable_bytes(std::span(memory_));
  }
  Result<void> filled(std::size_t size) override {
    stopped_ = stopped_ || !piece_(std::string_view(memory_.data(), size));
    return {};
  }
  void finish() override {}
  void abort(const Error&) override {}
  bool stopped() const { return stopped_; }

 private:
  const Piece& piece_;
  std::vector<char> memory_;
  bool stopped_ = false;
};

bool is_idempotent(std::string_view method) {  // RFC 9110 9.2.2
  return method == "GET" || method == "HEAD" || method == "PUT" || method == "DELETE" ||
         method == "OPTIONS";
}

// Whether a connection that waited in the pool can still be used: nothing to read, not even its
// end.
bool is_quiet(int descriptor) {
  char byte = 0;
  const auto size = ::recv(descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

net::awaitable<void> wait_at_most(std::chrono::milliseconds time) {
  const net::any_io_executor executor = co_await net::this_coro::executor;
  net::steady_timer timer(executor, time);
  auto [cancelled] = co_await timer.async_wait(kAwait);
  static_cast<void>(cancelled);
}

// Descriptors of idle connections: sockets belong to an io_context, and each call runs its own.
class Pool {
 public:
  explicit Pool(std::size_t limit) : limit_(limit) {}
  ~Pool() {
    while (const auto descriptor = try_take()) ::close(*descriptor);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::optional<int> try_take() {
    return idle_.with([](std::vector<int>& idle) -> std::optional<int> {
      if (idle.empty()) return std::nullopt;
      const int descriptor = idle.back();
      idle.pop_back();
      return descriptor;
    });
  }
  void put(int descriptor) {
    const bool kept = idle_.with([&](std::vector<int>& idle) {
      if (idle.size() >= limit_) return false;
      idle.push_back(descriptor);
      return true;
    });
    if (!kept) ::close(descriptor);
  }

 private:
  const std::size_t limit_;
  Guarded<std::vector<int>> idle_;
};

class ClientImpl final : public Client {
 public:
  ClientImpl(Url server, ClientOptions options)
      : server_(std::move(server)), options_(options), pool_(options.max_connections) {}

  const Url& server() const override { return server_; }

  Result<Response> blocking_send(const Request& request) override {
    Job job;
    job.request = &request;
    return run_one(job);
  }
  std::vector<Result<Response>> blocking_send_all(std::span<const Request> requests) override {
    std::vector<Job> jobs(requests.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].request = &requests[i];
    return run(jobs);
  }
  Result<Response> blocking_send_from(const Request& head, Parts parts,
                                      const Progress& progress) override {
    Job job;
    job.request = &head;
    job.parts = parts;
    job.bulk = true;
    if (progress) job.progress = &progress;
    return run_one(job);
  }
  Result<Response> blocking_send_source(const Request& head, BodySource& source) override {
    Job job;
    job.request = &head;
    job.source = &source;
    job.bulk = true;
    return run_one(job);
  }
  Result<Response> blocking_send_streaming(const Request& request, const Piece& piece) override {
    Job job;
    job.request = &request;
    job.piece = &piece;
    return run_one(job);
  }

  Result<Response> blocking_send_into(const Request& request, BodySink& sink) override {
    Job job;
    job.request = &request;
    job.sink = &sink;
    return run_one(job);
  }

 private:
  using Answers = std::vector<std::optional<Result<Response>>>;

  Result<Response> run_one(const Job& job) { return std::move(run(std::span(&job, 1)).front()); }
  std::vector<Result<Response>> run(std::span<const Job> jobs);
  net::awaitable<void> work(net::io_context& io, std::span<const Job> jobs, std::size_t& next,
                            Answers& answers);
  net::awaitable<Result<Response>> send(net::io_context& io, const Job& job);
  net::awaitable<Result<void>> open(Connection& connection, bool fresh);
  net::awaitable<Result<Response>> exchange(Connection& connection, const Job& job);
  net::awaitable<std::optional<Result<ResponseHead>>> send_request(Connection& connection,
                                                                   const Job& job);
  net::awaitable<std::optional<Result<ResponseHead>>> send_parts(Connection& connection,
                                                                 const Job& job,
                                                                 error_code& failed);
  net::awaitable<Result<ResponseHead>> read_final_head(Connection& connection,
                                                       std::string_view method);
  net::awaitable<Result<ResponseHead>> read_answer_head(Connection& connection,
                                                        std::string_view method);
  net::awaitable<Result<Response>> read_answer_body(Connection& connection, const Job& job,
                                                    ResponseHead head);
  void keep(Connection& connection);
  Error failure(const Connection& connection, const Error& error) const;

  const Url server_;
  const ClientOptions options_;
  Pool pool_;
};

std::vector<Result<Response>> ClientImpl::run(std::span<const Job> jobs) {
  net::io_context io(1);
  Answers answers(jobs.size());
  std::size_t next = 0;
  const std::size_t workers =
      std::min(jobs.size(), std::max<std::size_t>(options_.max_connections, 1));
  const auto rethrow = [](const std::exception_ptr& thrown) {
    if (thrown) std::rethrow_exception(thrown);
  };
  for (std::size_t i = 0; i < workers; ++i) {
    auto task = work(io, jobs, next, answers);
    net::co_spawn(io, std::move(task), rethrow);
  }
  io.run();
  std::vector<Result<Response>> results;
  results.reserve(answers.size());
  for (auto& answer : answers) results.push_back(std::move(*answer));
  return results;
}

net::awaitable<void> ClientImpl::work(net::io_context& io, std::span<const Job> jobs,
                                      std::size_t& next, Answers& answers) {
  while (next < jobs.size()) {
    const std::size_t index = next++;
    auto answer = co_await send(io, jobs[index]);
    answers[index].emplace(std::move(answer));
  }
}

net::awaitable<Result<Response>> ClientImpl::send(net::io_context& io, const Job& job) {
  for (bool fresh = false;; fresh = true) {
    const auto shared = std::make_shared<Connection>(io);
    Connection& connection = *shared;
    auto opened = co_await open(connection, fresh);
    if (!opened) co_return std::move(opened).error();
    connection.arm(options_.request_timeout);
    auto answer = co_await exchange(connection, job);
    connection.disarm();
    if (answer) {
      keep(connection);
      co_return answer;
    }
    const bool stale = connection.kept && !connection.answered && !connection.timed_out &&
                       (connection.reset || is_idempotent(job.request->method));
    if (!stale) co_return failure(connection, answer.error());
  }
}

// Takes a kept connection, unless it must be a `fresh` one.
net::awaitable<Result<void>> ClientImpl::open(Connection& connection, bool fresh) {
  tcp::socket& socket = connection.stream.socket;
  error_code failed;
  while (const auto descriptor = fresh ? std::nullopt : pool_.try_take()) {
    if (!is_quiet(*descriptor)) {
      ::close(*descriptor);
      continue;
    }
    socket.assign(tcp::v4(), *descriptor, failed);
    if (failed) {
      ::close(*descriptor);
      continue;
    }
    connection.kept = true;
    co_return Result<void>();
  }
  connection.arm(options_.connect_timeout);
  const std::string port = std::to_string(server_.port);
  auto [unresolved, endpoints] =
      co_await connection.resolver.async_resolve(server_.host, port, kAwait);
  failed = unresolved;
  if (!failed) {
    auto [refused, endpoint] = co_await net::async_connect(socket, endpoints, kAwait);
    failed = refused;
  }
  connection.disarm();
  if (failed || connection.timed_out) {
    const bool late = connection.timed_out;
    const ErrorCode code = late ? ErrorCode::kDeadline : ErrorCode::kDisconnected;
    const std::string why = late ? "timed out" : failed.message();
    co_return Error(code, fmt::format("cannot connect to {}: {}", server_.text(), why));
  }
  socket.set_option(tcp::no_delay(true), failed);
  co_return Result<void>();
}

void ClientImpl::keep(Connection& connection) {
  tcp::socket& socket = connection.stream.socket;
  if (!connection.reusable || !connection.stream.unread().empty() || !socket.is_open()) return;
  error_code failed;
  const int descriptor = socket.release(failed);
  if (!failed) pool_.put(descriptor);
}

Error ClientImpl::failure(const Connection& connection, const Error& error) const {
  if (connection.timed_out) {
    return Error(ErrorCode::kDeadline, fmt::format("{} did not answer within {} ms", server_.text(),
                                                   options_.request_timeout.count()));
  }
  return Error(error.code(), fmt::format("{}: {}", server_.text(), error.message()));
}

net::awaitable<Result<Response>> ClientImpl::exchange(Connection& connection, const Job& job) {
  auto early = co_await send_request(connection, job);
  if (early && !early->has_value()) co_return std::move(*early).error();
  ResponseHead head;
  if (early) {
    head = std::move(**early);
    head.keep_alive = false;  // the rest of the body was not sent
  } else {
    auto read = co_await read_final_head(connection, job.request->method);
    if (!read) co_return std::move(read).error();
    head = std::move(*read);
  }
  auto response = co_await read_answer_body(connection, job, std::move(head));
  co_return response;
}

// The lines that we add to a request's head.
std::string own_fields(const Job& job, std::string_view key) {
  const std::string_view method = job.request->method;
  const std::uint64_t bytes = job.body_bytes();
  std::string lines;
  if (!key.empty()) lines.append("Authorization: Bearer ").append(key).append("\r\n");
  if (bytes == 0 && (method == "GET" || method == "HEAD")) return lines;  // no body by nature
  lines += fmt::format("Content-Length: {}\r\n", bytes);
  if (job.bulk && bytes > 0) lines += "Expect: 100-continue\r\n";
  return lines;
}

// Sends all of the request. Returns the head of an answer that came before the end of it.
net::awaitable<std::optional<Result<ResponseHead>>> ClientImpl::send_request(Connection& connection,
                                                                             const Job& job) {
  Stream& stream = connection.stream;
  const std::string text = request_head_text(*job.request, server_, own_fields(job, options_.key));
  Outgoing outgoing;
  outgoing.add(text);
  if (!job.bulk) outgoing.add(job.request->body);
  error_code failed = co_await write_all(stream, outgoing, nullptr);
  if (!failed && job.body_bytes() > 0 && job.bulk) {
    auto early = co_await send_parts(connection, job, failed);
    if (early) co_return early;
  }
  if (!failed) co_return std::nullopt;
  connection.reset = failed != net::error::eof;
  // The server may have answered before it closed.
  auto head = co_await read_final_head(connection, job.request->method);
  co_return head;
}

// Sends job.parts, or what job.source makes, after a 100 Continue or a second. Returns the head of
// an early answer, or the source's error.
net::awaitable<std::optional<Result<ResponseHead>>> ClientImpl::send_parts(Connection& connection,
                                                                           const Job& job,
                                                                           error_code& failed) {
  using net::experimental::awaitable_operators::operator||;
  constexpr std::chrono::milliseconds kContinueWait{1'000};  // as curl: some servers send no 100
  Stream& stream = connection.stream;
  Outgoing outgoing;
  for (const auto& part : job.parts) outgoing.add(part);
  if (job.source != nullptr) job.source->restart();
  std::uint64_t sent_bytes = 0;
  const std::function<void(std::size_t)> sent = [&](std::size_t bytes) {
    sent_bytes += bytes;
    if (job.progress != nullptr) (*job.progress)(sent_bytes);
  };
  auto permission = wait_readable(stream.socket) || wait_at_most(kContinueWait);
  co_await std::move(permission);
  while (sent_bytes < job.body_bytes() && !failed) {
    if (stream.socket.available(failed) > 0 || !stream.unread().empty()) {
      auto head = co_await read_answer_head(connection, job.request->method);
      if (!head || head->response.status >= 200) co_return head;
      continue;
    }
    if (failed) break;
    if (outgoing.empty()) {
      const auto made = job.source->next();
      if (!made) co_return Result<ResponseHead>(made.error());
      outgoing = Outgoing();
      for (const auto& part : *made) outgoing.add(part);
    }
    auto either = write_all(stream, outgoing, sent) || wait_readable(stream.socket);
    const auto outcome = co_await std::move(either);
    if (outcome.index() == 0) {
      failed = std::get<0>(outcome);
    } else if (stream.socket.available(failed) == 0 && !failed) {
      failed = net::error::eof;
    }
  }
  co_return std::nullopt;
}

net::awaitable<Result<ResponseHead>> ClientImpl::read_final_head(Connection& connection,
                                                                 std::string_view method) {
  while (true) {
    auto head = co_await read_answer_head(connection, method);
    if (!head || head->response.status >= 200) co_return head;
  }
}

net::awaitable<Result<ResponseHead>> ClientImpl::read_answer_head(Connection& connection,
                                                                  std::string_view method) {
  Stream& stream = connection.stream;
  while (stream.unread().empty()) {
    const error_code failed = co_await fill(stream);
    if (!failed) continue;
    if (failed == net::error::connection_reset || failed == net::error::broken_pipe) {
      connection.reset = true;
    }
    co_return Error(ErrorCode::kDisconnected, "the connection closed before an answer came");
  }
  connection.answered = true;
  auto size = co_await read_head(stream);
  if (!size && size.error().code() == ErrorCode::kDisconnected) co_return std::move(size).error();
  if (!size) co_return Error(ErrorCode::kCorrupt, "the answer is no HTTP/1.1");
  auto head = parse_response_head(stream.unread().substr(0, *size), method);
  stream.consume(*size);
  co_return head;
}

// Whether the body of this answer is what job.sink waits for.
bool is_for_sink(const Job& job, int status) {
  if (job.sink == nullptr) return false;
  const bool part = job.request->headers.try_get("Range").has_value();
  return part ? status == 206 : status >= 200 && status < 300;
}

net::awaitable<Result<Response>> ClientImpl::read_answer_body(Connection& connection,
                                                              const Job& job, ResponseHead head) {
  StringSink whole(options_.response_limit_bytes);
  const Piece none;
  PieceSink pieces(job.piece != nullptr ? *job.piece : none);
  BodySink* sink = &whole;
  if (job.piece != nullptr) sink = &pieces;
  if (is_for_sink(job, head.response.status)) sink = job.sink;
  const std::function<bool()> stopped = [&] { return pieces.stopped(); };
  auto failed = co_await read_body(connection.stream, head.framing, *sink, stopped);
  if (failed) {
    Error error = std::move(failed->error);
    if (failed->cause == BodyFailure::Cause::kFraming) {
      error = Error(ErrorCode::kCorrupt, error.message());
    }
    if (failed->cause != BodyFailure::Cause::kSink) sink->abort(error);
    co_return error;
  }
  sink->finish();
  head.response.body = whole.take();
  connection.reusable = head.keep_alive && !pieces.stopped();
  co_return std::move(head.response);
}

}  // namespace

std::unique_ptr<Client> Client::make(Url server, ClientOptions options) {
  return std::make_unique<ClientImpl>(std::move(server), options);
}

}  // namespace weft::http
