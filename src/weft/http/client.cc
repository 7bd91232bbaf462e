#include "weft/http/client.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <unordered_set>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "weft/base/guarded.h"
#include "weft/http/client_connection-inl.h"

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
  // A body that is refused costs no more than asking would, if it is small: a round trip.
  bool expects_continue() const {
    constexpr std::uint64_t kSmallBytes = 4 << 20;
    return bulk && body_bytes() > kSmallBytes;
  }
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

bool is_reset(error_code failed) {
  return failed == net::error::connection_reset || failed == net::error::broken_pipe;
}

net::awaitable<void> wait_at_most(std::chrono::milliseconds time) {
  const net::any_io_executor executor = co_await net::this_coro::executor;
  net::steady_timer timer(executor, time);
  auto [cancelled] = co_await timer.async_wait(kAwait);
  static_cast<void>(cancelled);
}

// One call of a client: its exchanges run on the caller's thread.
struct Run {
  explicit Run(std::span<const Job> all) : jobs(all), answers(all.size()) {}

  const std::span<const Job> jobs;
  std::size_t next = 0;  // job to begin
  std::vector<std::optional<Result<Response>>> answers;
  net::io_context io{1};
  std::unordered_set<Connection*> connections;  // that are busy
  bool cancelled = false;
};

// The calls that run. What is cancelled once stays so.
struct Runs {
  std::unordered_set<Run*> all;
  bool cancelled = false;
};

Error cancelled_error() {
  return {ErrorCode::kCancelled, "the request was cancelled"};
}

class ClientImpl final : public Client {
 public:
  ClientImpl(Url server, ClientOptions options)
      : server_(std::move(server)), options_(std::move(options)), pool_(options_.max_connections) {
    if (server_.scheme == "https") tls_.emplace(TlsContext::blocking_make_client(options_.ca_file));
  }

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
  void cancel() override;

 private:
  Result<Response> run_one(const Job& job) { return std::move(run(std::span(&job, 1)).front()); }
  std::vector<Result<Response>> run(std::span<const Job> jobs);
  net::awaitable<void> work(Run& run);
  net::awaitable<Result<Response>> send(Run& run, const Job& job);
  net::awaitable<Result<Response>> send_on(Connection& connection, const Job& job, bool fresh);
  net::awaitable<Result<void>> open(Connection& connection, bool fresh);
  net::awaitable<Result<void>> connect(Connection& connection);
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
  std::optional<Result<std::shared_ptr<const TlsContext>>> tls_;  // of https
  Pool pool_;
  Guarded<Runs> runs_;
};

std::vector<Result<Response>> ClientImpl::run(std::span<const Job> jobs) {
  Run run(jobs);
  runs_.with([&](Runs& runs) {
    run.cancelled = runs.cancelled;
    runs.all.insert(&run);
  });
  const std::size_t workers =
      std::min(jobs.size(), std::max<std::size_t>(options_.max_connections, 1));
  const auto rethrow = [](const std::exception_ptr& thrown) {
    if (thrown) std::rethrow_exception(thrown);
  };
  for (std::size_t i = 0; i < workers; ++i) {
    auto task = work(run);
    net::co_spawn(run.io, std::move(task), rethrow);
  }
  run.io.run();
  runs_.with([&](Runs& runs) { runs.all.erase(&run); });
  std::vector<Result<Response>> results;
  results.reserve(run.answers.size());
  for (auto& answer : run.answers) results.push_back(std::move(*answer));
  return results;
}

void ClientImpl::cancel() {
  runs_.with([](Runs& runs) {
    runs.cancelled = true;
    for (Run* run : runs.all) {
      net::post(run->io, [run] {
        run->cancelled = true;
        for (Connection* connection : run->connections) connection->cut(cancelled_error());
      });
    }
  });
}

net::awaitable<void> ClientImpl::work(Run& run) {
  while (run.next < run.jobs.size()) {
    const std::size_t index = run.next++;
    auto answer = co_await send(run, run.jobs[index]);
    run.answers[index].emplace(std::move(answer));
  }
}

net::awaitable<Result<Response>> ClientImpl::send(Run& run, const Job& job) {
  for (bool fresh = false;; fresh = true) {
    if (run.cancelled) co_return cancelled_error();
    const auto connection = std::make_shared<Connection>(run.io);
    run.connections.insert(connection.get());
    auto answer = co_await send_on(*connection, job, fresh);
    run.connections.erase(connection.get());
    const bool stale = !answer && connection->kept && !connection->answered && !connection->ended &&
                       (connection->reset || is_idempotent(job.request->method));
    if (!stale) co_return answer;
  }
}

net::awaitable<Result<Response>> ClientImpl::send_on(Connection& connection, const Job& job,
                                                     bool fresh) {
  auto opened = co_await open(connection, fresh);
  if (!opened) co_return std::move(opened).error();
  connection.arm(options_.request_timeout, options_.idle_timeout);
  auto answer = co_await exchange(connection, job);
  connection.disarm();
  if (!answer) co_return failure(connection, answer.error());
  keep(connection);
  co_return answer;
}

// Takes a kept connection, unless it must be a `fresh` one.
net::awaitable<Result<void>> ClientImpl::open(Connection& connection, bool fresh) {
  if (tls_ && !tls_->has_value()) co_return tls_->error();
  error_code failed;
  while (auto idle = fresh ? std::nullopt : pool_.try_take_quiet()) {
    connection.stream.socket.assign(tcp::v4(), idle->descriptor, failed);
    if (failed) {
      idle->close();
      continue;
    }
    connection.stream.tls = std::move(idle->tls);
    connection.kept = true;
    co_return Result<void>();
  }
  connection.arm(options_.connect_timeout, options_.connect_timeout);
  auto connected = co_await connect(connection);
  connection.disarm();
  if (connection.ended) connected = *connection.ended;
  if (connected) co_return connected;
  co_return std::move(connected).error().with_context("cannot connect to " + server_.text());
}

// It is done at once, or refused: nothing is on its way.
Result<void> connect_local(tcp::socket& socket, const std::string& path) {
  net::local::stream_protocol::socket local(socket.get_executor());
  error_code failed;
  local.open(net::local::stream_protocol(), failed);
  if (!failed) local.non_blocking(true, failed);  // where too many wait already
  if (!failed) local.connect(net::local::stream_protocol::endpoint(path), failed);
  if (!failed) socket.assign(tcp::v4(), local.release(), failed);
  if (failed) return Error(ErrorCode::kDisconnected, failed.message());
  return {};
}

// To the first of the host's addresses that takes the connection.
net::awaitable<Result<void>> ClientImpl::connect(Connection& connection) {
  tcp::socket& socket = connection.stream.socket;
  if (!server_.socket_path.empty()) co_return connect_local(socket, server_.socket_path);
  const std::string port = std::to_string(server_.port);
  auto [unresolved, endpoints] =
      co_await connection.resolver.async_resolve(server_.host, port, kAwait);
  error_code failed = unresolved;
  if (!failed) {
    auto [refused, endpoint] = co_await net::async_connect(socket, endpoints, kAwait);
    failed = refused;
  }
  if (failed) co_return Error(ErrorCode::kDisconnected, failed.message());
  socket.set_option(tcp::no_delay(true), failed);
  if (!tls_) co_return Result<void>();
  socket.native_non_blocking(true, failed);
  connection.stream.tls = tls_->value()->connect(socket.native_handle(), server_.host);
  auto shaken = co_await shake_hands(connection.stream);
  co_return shaken;
}

void ClientImpl::keep(Connection& connection) {
  Stream& stream = connection.stream;
  if (!connection.reusable || !stream.unread().empty() || !stream.socket.is_open()) return;
  if (stream.tls && stream.tls->has_pending()) return;
  error_code failed;
  const int descriptor = stream.socket.release(failed);
  if (!failed) pool_.put(Idle{descriptor, std::move(stream.tls)});
}

Error ClientImpl::failure(const Connection& connection, const Error& error) const {
  const Error& cause = connection.ended ? *connection.ended : error;
  return Error(cause.code(), fmt::format("{}: {}", server_.text(), cause.message()));
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
  if (job.expects_continue()) lines += "Expect: 100-continue\r\n";
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
  connection.reset = is_reset(failed);
  // The server may have answered before it closed.
  auto head = co_await read_final_head(connection, job.request->method);
  co_return head;
}

// Sends job.parts, or what job.source makes, after a 100 Continue or a second if that is asked for.
// Returns the head of an early answer, or the source's error.
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
  if (job.expects_continue()) {
    auto permission = fill_when_ready(stream) || wait_at_most(kContinueWait);
    co_await std::move(permission);
  }
  while (sent_bytes < job.body_bytes() && !failed) {
    if (stream.unread().empty()) failed = stream.read_now();
    if (failed == net::error::would_block) failed = error_code();
    if (!stream.unread().empty()) {
      auto head = co_await read_answer_head(connection, job.request->method);
      if (!head || head->response.status >= 200) co_return head;
      continue;
    }
    if (failed) break;
    if (outgoing.empty()) {
      const auto made = job.source->next();
      stream.last_active = Clock::now();  // it may have taken its time
      if (!made) co_return Result<ResponseHead>(made.error());
      outgoing = Outgoing();
      for (const auto& part : *made) outgoing.add(part);
    }
    auto either = write_all(stream, outgoing, sent) || fill_when_ready(stream);
    const auto outcome = co_await std::move(either);
    failed = outcome.index() == 0 ? std::get<0>(outcome) : std::get<1>(outcome);
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
    if (is_reset(failed)) connection.reset = true;
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
  std::optional<PieceSink> pieces;
  BodySink* sink = &whole;
  if (job.piece != nullptr) sink = &pieces.emplace(*job.piece);
  if (is_for_sink(job, head.response.status)) sink = job.sink;
  const std::function<bool()> stopped = [&] { return pieces && pieces->stopped(); };
  auto failed = co_await read_body(connection.stream, head.framing, *sink, stopped);
  if (failed) {
    Error error = std::move(failed->error);
    if (failed->cause == BodyFailure::Cause::kFraming) {
      error = Error(ErrorCode::kCorrupt, error.message());
    }
    if (connection.ended) error = *connection.ended;
    if (failed->cause != BodyFailure::Cause::kSink) sink->abort(error);
    co_return error;
  }
  sink->finish();
  head.response.body = whole.take();
  connection.reusable = head.keep_alive && !stopped();
  co_return std::move(head.response);
}

}  // namespace

std::unique_ptr<Client> Client::make(Url server, ClientOptions options) {
  return std::make_unique<ClientImpl>(std::move(server), std::move(options));
}

}  // namespace weft::http
