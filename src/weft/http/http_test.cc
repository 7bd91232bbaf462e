#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/http/client.h"
#include "weft/http/server.h"

namespace weft::http {
namespace {

using namespace std::chrono_literals;

// A plain socket that says exactly what it is told to.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer_bytes = 0)
      : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { close(descriptor_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void say(std::string_view text) {
    while (!text.empty()) {
      const auto sent = send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // All until the server closes, or until `enough` is in it.
  std::string hear(std::string_view enough = "\n\n\n") {
    std::string heard;
    char piece[4096];
    while (heard.find(enough) == std::string::npos) {
      pollfd ready{descriptor_, POLLIN, 0};
      if (poll(&ready, 1, 10'000) != 1) return heard + "<TIMEOUT>";
      const auto size = recv(descriptor_, piece, sizeof piece, 0);
      if (size <= 0) break;
      heard.append(piece, static_cast<std::size_t>(size));
    }
    return heard;
  }
  void finish_sending() { shutdown(descriptor_, SHUT_WR); }

 private:
  const int descriptor_;
};

// Collects a body with buffers of a given size.
class TestSink final : public BodySink {
 public:
  TestSink(std::shared_ptr<Exchange> exchange, std::size_t buffer_bytes,
           std::size_t fail_after = SIZE_MAX, std::promise<std::string>* aborted = nullptr)
      : exchange_(std::move(exchange)),
        memory_(buffer_bytes),
        fail_after_(fail_after),
        aborted_(aborted) {}
  Result<std::span<std::byte>> buffer() override { return std::span(memory_); }
  Result<void> filled(std::size_t size) override {
    for (std::size_t i = 0; i < size; ++i) body_ += static_cast<char>(memory_[i]);
    if (body_.size() > fail_after_) return Error(ErrorCode::kCorrupt, "digest differs");
    return {};
  }
  void finish() override {
    Response response;
    response.body = body_;
    exchange_->respond(std::move(response));
  }
  void abort(const Error& error) override {
    if (aborted_ != nullptr) aborted_->set_value(error.message());
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::byte> memory_;
  std::string body_;
  std::size_t fail_after_;
  std::promise<std::string>* aborted_;
};

Response text_response(std::string body) {
  Response response;
  response.body = std::move(body);
  return response;
}

class HttpTest : public testing::Test {
 protected:
  void add(std::string method, std::string pattern, Handler handler,
           std::uint64_t limit = 1u << 20) {
    Route route;
    route.method = std::move(method);
    route.pattern = std::move(pattern);
    route.handler = std::move(handler);
    route.body_limit_bytes = limit;
    routes_.push_back(std::move(route));
  }
  void add_bulk(std::string pattern, BulkHandler handler) {
    Route route;
    route.method = "POST";
    route.pattern = std::move(pattern);
    route.bulk_handler = std::move(handler);
    routes_.push_back(std::move(route));
  }
  void start() {
    add("GET", "/hello",
        [](const Request&, std::shared_ptr<Exchange> x) { x->respond(text_response("hello")); });
    add("POST", "/echo",
        [](const Request& r, std::shared_ptr<Exchange> x) { x->respond(text_response(r.body)); });
    ServerOptions options;
    options.port = 0;
    auto server = Server::create(options, std::move(routes_));
    ASSERT_TRUE(server.has_value()) << server.error().message();
    server_ = std::move(*server);
    Url url;
    url.scheme = "http";
    url.host = "127.0.0.1";
    url.port = server_->port();
    client_ = Client::make(url);
  }
  std::string raw(std::string_view request) {
    RawClient client(server_->port());
    client.say(request);
    return client.hear();
  }
  Result<Response> get(std::string target) { return send("GET", std::move(target)); }
  Result<Response> send(std::string method, std::string target, std::string body = "") {
    Request request;
    request.method = std::move(method);
    request.target = std::move(target);
    request.body = std::move(body);
    return client_->blocking_send(request);
  }

  std::vector<Route> routes_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(HttpTest, AnswersARequest) {
  start();

  auto response = get("/hello");

  ASSERT_TRUE(response.has_value()) << response.error().message();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "hello");
}

TEST_F(HttpTest, EchoesBodiesOfManySizes) {
  start();
  for (const std::size_t size : {0, 1, 1000, 16383, 16384, 65537, 1048576}) {
    const std::string body(size, 'b');
    auto response = send("POST", "/echo", body);
    ASSERT_TRUE(response.has_value()) << response.error().message();
    EXPECT_EQ(response->body, body);
  }
}

TEST_F(HttpTest, AnswersAThousandAtOnceFromAnotherThread) {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::shared_ptr<Exchange>>> waiting;
  std::vector<std::thread> threads;
  add("GET", "/later/{name}", [&](const Request& r, std::shared_ptr<Exchange> x) {
    const std::lock_guard lock(mutex);
    waiting.emplace_back(r.param("name"), std::move(x));
    if (waiting.size() < 1000) return;
    threads.emplace_back([all = std::move(waiting)] {
      for (const auto& [name, exchange] : all) exchange->respond(text_response(name));
    });
  });
  start();
  ClientOptions options;
  options.max_connections = 1000;
  const auto client = Client::make(client_->server(), options);
  std::vector<Request> requests(1000);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].method = "GET";
    requests[i].target = "/later/" + std::to_string(i);
  }

  const auto responses = client->blocking_send_all(requests);

  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(responses[i].has_value()) << responses[i].error().message();
    EXPECT_EQ(responses[i]->body, std::to_string(i));
  }
}

TEST_F(HttpTest, StreamsABulkBodyIntoASink) {
  add_bulk("/bulk",
           [](const Request&, std::shared_ptr<Exchange> x) -> Result<std::unique_ptr<BodySink>> {
             return std::unique_ptr<BodySink>(std::make_unique<TestSink>(std::move(x), 70'001));
           });
  start();
  std::string first(3'000'000, 'a');
  std::string second(1'234'567, 'b');
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(first)),
                                              std::as_bytes(std::span(second))};
  Request head;
  head.method = "POST";
  head.target = "/bulk";
  std::uint64_t last = 0;

  auto response =
      client_->blocking_send_from(head, parts, [&](std::uint64_t bytes) { last = bytes; });

  ASSERT_TRUE(response.has_value()) << response.error().message();
  EXPECT_EQ(response->body, first + second);
  EXPECT_EQ(last, first.size() + second.size());
}

TEST_F(HttpTest, StreamsAnAnswerPieceByPiece) {
  add("GET", "/events", [](const Request&, std::shared_ptr<Exchange> x) {
    x->begin_stream(Response());
    std::thread([x] {
      for (int i = 0; i < 100; ++i) x->write("data: " + std::to_string(i) + "\n\n");
      x->end();
    }).detach();
  });
  start();
  std::string heard;
  Request request;
  request.method = "GET";
  request.target = "/events";

  auto response = client_->blocking_send_streaming(request, [&](std::string_view piece) {
    heard += piece;
    return true;
  });

  ASSERT_TRUE(response.has_value()) << response.error().message();
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  EXPECT_EQ(heard, expected);
}

}  // namespace
}  // namespace weft::http
