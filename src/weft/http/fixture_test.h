#pragma once
// What the tests of this module have in common: a server with its client, a raw client and a server
// that plays a script.

#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

using namespace std::chrono_literals;

// A plain socket that says exactly what it is told to.
class RawClient {
 public:
  RawClient() : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {}
  explicit RawClient(std::uint16_t port, int receive_buffer_bytes = 0) : RawClient() {
    if (receive_buffer_bytes > 0) {
      setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
    }
    connect_to(port);
  }
  void connect_to(std::uint16_t port) {
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

inline Response text_response(std::string body) {
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
    options_.port = 0;
    auto server = Server::create(options_, std::move(routes_));
    ASSERT_TRUE(server.has_value()) << server.error().message();
    server_ = std::move(*server);
    Url url;
    url.scheme = options_.tls ? "https" : "http";
    url.host = "127.0.0.1";
    url.port = server_->port();
    client_ = Client::make(url, client_options_);
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

  ServerOptions options_;  // these three are what start() takes
  ClientOptions client_options_;
  std::vector<Route> routes_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

inline BulkHandler into_sink(std::size_t buffer_bytes, std::size_t fail_after = SIZE_MAX,
                             std::promise<std::string>* aborted = nullptr) {
  return [buffer_bytes, fail_after, aborted](
             const Request&, std::shared_ptr<Exchange> x) -> Result<std::unique_ptr<BodySink>> {
    return std::unique_ptr<BodySink>(
        std::make_unique<TestSink>(std::move(x), buffer_bytes, fail_after, aborted));
  };
}

// Accepts connections one after the other and plays one script on each.
class ScriptedServer {
 public:
  using Script = std::function<void(int descriptor)>;
  explicit ScriptedServer(std::vector<Script> scripts)
      : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_.scheme = "http";
    url_.host = "127.0.0.1";
    url_.port = ntohs(address.sin_port);
    thread_ = std::thread([this, scripts = std::move(scripts)] {
      for (const Script& script : scripts) {
        const int descriptor = accept(listener_, nullptr, nullptr);
        script(descriptor);
        close(descriptor);
      }
    });
  }
  ~ScriptedServer() {
    thread_.join();
    close(listener_);
  }
  const Url& url() const { return url_; }

 private:
  const int listener_;
  Url url_;
  std::thread thread_;
};

inline void read_request(int descriptor) {
  std::string text;
  char c = 0;
  while (!text.ends_with("\r\n\r\n") && recv(descriptor, &c, 1, 0) == 1) text += c;
}

inline ScriptedServer::Script answer_with(std::string text) {
  return [text = std::move(text)](int descriptor) {
    read_request(descriptor);
    EXPECT_EQ(send(descriptor, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  };
}

inline Request request_of(std::string method) {
  Request request;
  request.method = std::move(method);
  request.target = "/";
  return request;
}

}  // namespace weft::http
