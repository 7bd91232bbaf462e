// Many connections, slow ones, and no descriptors left.
#include <vector>

#include <sys/resource.h>

#include "weft/http/fixture_test.h"

namespace weft::http {
namespace {

constexpr std::string_view kHello = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
constexpr std::string_view kHelloOnce =
    "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

std::vector<std::unique_ptr<RawClient>> connect_all(std::uint16_t port, std::size_t number) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (std::size_t i = 0; i < number; ++i) clients.push_back(std::make_unique<RawClient>(port));
  return clients;
}

TEST_F(HttpTest, HoldsManyConnectionsAndServesEach) {
  constexpr std::size_t kNumber = 500;
  start();
  const auto clients = connect_all(server_->port(), kNumber);

  for (const auto& client : clients) {
    client->say(kHello);
    EXPECT_TRUE(client->hear("hello").ends_with("hello"));
  }
  EXPECT_EQ(server_->counts().open_connections, kNumber);
  for (const auto& client : clients) {
    client->say(kHelloOnce);
    EXPECT_TRUE(client->hear().ends_with("hello"));
  }

  const ServerCounts counts = server_->counts();
  EXPECT_EQ(counts.accepted, kNumber);
  EXPECT_EQ(counts.refused, 0u);
  EXPECT_EQ(counts.responses, (std::map<int, std::uint64_t>{{200, 2 * kNumber}}));
}

TEST_F(HttpTest, TellsAConnectionTooManyThatItIsBusy) {
  options_.max_connections = 2;
  start();
  const auto clients = connect_all(server_->port(), 2);
  for (const auto& client : clients) {
    client->say(kHello);
    client->hear("hello");
  }

  RawClient third(server_->port());

  EXPECT_TRUE(third.hear().starts_with("HTTP/1.1 503 "));
  EXPECT_EQ(server_->counts().refused, 1u);
  clients.front()->say(kHello);
  EXPECT_TRUE(clients.front()->hear("hello").ends_with("hello"));
}

TEST_F(HttpTest, IsNotHeldUpByClientsThatStandStill) {
  const std::string large(20'000'000, 'x');
  add("GET", "/large", [&](const Request&, std::shared_ptr<Exchange> x) {
    std::vector<BodyPart> parts(1);
    parts[0].bytes = std::as_bytes(std::span(large));
    x->respond_from(Response(), std::move(parts), nullptr);
  });
  start();
  const auto clients = connect_all(server_->port(), 9);
  for (std::size_t i = 0; i < clients.size(); i += 3) {
    clients[i]->say("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");  // and does not read
    clients[i + 1]->say("GET /hel");
    clients[i + 2]->say("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
  }

  for (int i = 0; i < 10; ++i) EXPECT_EQ(get("/hello").value().body, "hello");
}

// While it lives, this process cannot open another file.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);  // the lowest that is free
    close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

 private:
  rlimit before_{};
};

TEST_F(HttpTest, KeepsServingWhenItHasNoDescriptorsLeft) {
  start();
  RawClient early(server_->port());
  early.say(kHello);
  early.hear("hello");
  RawClient late;
  {
    const NoDescriptorsLeft none;
    late.connect_to(server_->port());
    late.say(kHelloOnce);
    for (int i = 0; i < 5; ++i) {
      early.say(kHello);
      EXPECT_TRUE(early.hear("hello").ends_with("hello"));
    }
    EXPECT_EQ(server_->counts().accepted, 1u);
  }

  EXPECT_TRUE(late.hear().ends_with("hello"));
}

TEST_F(HttpTest, CountsWhatItRefuses) {
  options_.header_timeout = 0s;
  start();
  RawClient slow(server_->port());
  slow.say("GET /hel");
  EXPECT_EQ(slow.hear(), "");
  raw("GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  raw("GET /hello HTTP/1.1\r\n\r\n");

  const ServerCounts counts = server_->counts();

  EXPECT_EQ(counts.timed_out, 1u);
  EXPECT_EQ(counts.responses, (std::map<int, std::uint64_t>{{400, 1}, {404, 1}}));
}

}  // namespace
}  // namespace weft::http
