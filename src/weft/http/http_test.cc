// The server, and the client where it behaves.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "weft/http/fixture_test.h"

namespace weft::http {
namespace {

TEST_F(HttpTest, AnswersARequest) {
  start();

  auto response = get("/hello");

  ASSERT_TRUE(response.has_value()) << response.error().message();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "hello");
}

TEST_F(HttpTest, EchoesBodiesOfManySizes) {
  start();
  for (const std::size_t size : {0u, 1u, 1000u, 16383u, 16384u, 65537u, 1048576u}) {
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

// --- Framing: two readings of one message are refused, and nothing after it is run.

TEST_F(HttpTest, RefusesAmbiguousFramingAndCloses) {
  std::atomic<int> calls = 0;
  add("GET", "/smuggled", [&](const Request&, std::shared_ptr<Exchange> x) {
    ++calls;
    x->respond(text_response("smuggled"));
  });
  start();
  const std::string smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string post = "POST /echo HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n\r\n";
  const std::string cases[] = {
      post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: gzip\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + chunked + "10000000000000000\r\nhello\r\n0\r\n\r\n",
      post + chunked + "5\r\nhello0\r\n\r\n",
      post + chunked + "5;" + std::string(17'000, 'e') + "\r\nhello\r\n0\r\n\r\n",
      post + chunked + "5;a\nb\r\nhello\r\n0\r\n\r\n",
      post + chunked + "5\r\nhello\r\n0\r\nT: " + std::string(17'000, 'e') + "\r\n\r\n",
      post + chunked + "5\r\nhello\r\n0\r\n folded\r\n\r\n",
      post + chunked + " 5\r\nhello\r\n0\r\n\r\n",
      post + chunked + "\r\n",
      post + chunked + "-1\r\n",
      post + "Content-Length: -5\r\n\r\nhello",
      post + "Content-Length: +5\r\n\r\nhello",
      post + "Content-Length: 5,5\r\n\r\nhello",
      post + "Content-Length: 5,6\r\n\r\nhello",
      post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
      post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
      post + "Content-Length: " + std::string(30'000, '9') + "\r\n\r\n",
      post + "Content-Length: 0x5\r\n\r\nhello",
      post + "Content-Length : 5\r\n\r\nhello",
      post + "Content-Length: \r\n\r\nhello",
      post + "Content-Length: 5 5\r\n\r\nhello",
      post + "Content-Length: 18446744073709551616\r\n\r\nhello",
      post + "Transfer-Encoding: \r\n\r\nhello",
      post + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
      post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
      post +
          "Transfer-Encoding: \x0b"
          "chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding\r\n\r\n0\r\n\r\n",
      post + ": a\r\n\r\n",
      post + "\tX: a\r\n\r\n",
      post + std::string("X: a\0b\r\n\r\n", 10),
      post + "X: a\r\n folded\r\n\r\n",
      post + "X: a\nContent-Length: 5\r\n\r\nhello",
      post + "X: a\rb\r\n\r\n",
      post + "X: a\n\n",
      "POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
      "POST /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
      "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST  /echo HTTP/1.1\r\nHost: a\r\n\r\n",
      "POST /echo HTTP/2.0\r\nHost: a\r\n\r\n",
      "POST /echo\r\nHost: a\r\n\r\n",
      "\x16\x03\x01\r\n\r\n",
  };
  for (const std::string& request : cases) {
    const std::string answer = raw(request + smuggled);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 ")) << request.substr(0, 200) << "\n" << answer;
    EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << request.substr(0, 200);
    EXPECT_EQ(answer.find("HTTP/1.1 200"), std::string::npos) << request.substr(0, 200);
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(HttpTest, RefusesBodiesWithoutEnd) {
  start();
  const std::string post = "POST /echo HTTP/1.1\r\nHost: a\r\n";
  std::string endless = post + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 200; ++i) endless += "2000\r\n" + std::string(8192, 'x') + "\r\n";

  EXPECT_TRUE(raw(endless).starts_with("HTTP/1.1 413 "));
  EXPECT_TRUE(
      raw(post + "Content-Length: 18446744073709551615\r\n\r\n").starts_with("HTTP/1.1 413 "));
}

TEST_F(HttpTest, RefusesAHeadWithoutEnd) {
  start();

  const std::string answer = raw("GET /hello HTTP/1.1\r\nX: " + std::string(70'000, 'x'));

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 431 ")) << answer;
}

TEST_F(HttpTest, AnswersPipelinedRequestsInOrder) {
  start();

  const std::string answer =
      raw("\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none"
          "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
          "chunked\r\n\r\n3;x\r\ntwo\r\n0\r\nT: v\r\n\r\n"
          "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");

  EXPECT_EQ(answer,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo"
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
}

TEST_F(HttpTest, TakesARequestByteByByte) {
  start();
  RawClient client(server_->port());

  for (const char c : std::string("POST /echo HTTP/1.1\r\nHost: a\r\nConnection: "
                                  "close\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "3\r\none\r\n2\r\nab\r\n0\r\n\r\n")) {
    client.say(std::string_view(&c, 1));
  }

  EXPECT_TRUE(client.hear().ends_with("\r\n\r\noneab"));
}

TEST_F(HttpTest, AnswersHttp10WithoutChunks) {
  add("GET", "/events", [](const Request&, std::shared_ptr<Exchange> x) {
    x->begin_stream(Response());
    x->write("a");
    x->write("b");
    x->end();
  });
  start();

  EXPECT_EQ(raw("GET /events HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nab");
  EXPECT_TRUE(raw("GET /hello HTTP/1.0\r\n\r\n").ends_with("Connection: close\r\n\r\nhello"));
}

// --- Routes

TEST_F(HttpTest, AnswersUnknownPathsAndMethodsAsStarletteDoes) {
  start();

  const auto unknown = get("/nothing").value();
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.body, R"({"detail":"Not Found"})");
  const auto wrong = get("/echo").value();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.body, R"({"detail":"Method Not Allowed"})");
  EXPECT_EQ(wrong.headers.try_get("Allow"), "POST");
  EXPECT_EQ(get("//hello").value().status, 404);
  EXPECT_EQ(get("/x/../hello").value().status, 404);
  EXPECT_EQ(get("/hello/").value().status, 200);
}

TEST_F(HttpTest, AnswersHeadWithoutABody) {
  start();

  const std::string answer =
      raw("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\nHEAD /no HTTP/1.1\r\nHost: a\r\nConnection: "
          "close\r\n\r\n");

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 404 "))
      << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
  EXPECT_EQ(send("HEAD", "/hello").value().body, "");
}

TEST_F(HttpTest, RefusesTwoRoutesForOneRequest) {
  add("GET", "/hello", [](const Request&, std::shared_ptr<Exchange>) {});
  add("GET", "/hello", [](const Request&, std::shared_ptr<Exchange>) {});
  ServerOptions options;
  options.port = 0;

  EXPECT_EQ(Server::create(options, routes_).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(HttpTest, SaysThatThePortIsTaken) {
  start();
  ServerOptions options;
  options.port = server_->port();

  const auto second = Server::create(options, {});

  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
  EXPECT_NE(second.error().message().find(std::to_string(options.port)), std::string::npos);
  options.host = "no.such.host";
  EXPECT_EQ(Server::create(options, {}).error().code(), ErrorCode::kInvalidArgument);
}

// --- Bodies

TEST_F(HttpTest, RefusesALargeBodyBeforeItIsSent) {
  add(
      "POST", "/small",
      [](const Request& r, std::shared_ptr<Exchange> x) { x->respond(text_response(r.body)); }, 10);
  start();

  const std::string head = "POST /small HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n";
  EXPECT_TRUE(raw(head + "Content-Length: 11\r\n\r\n").starts_with("HTTP/1.1 413 "));
  EXPECT_TRUE(
      raw("POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n80000000\r\n" +
          std::string(100'000, 'x'))
          .starts_with("HTTP/1.1 413 "));
  EXPECT_EQ(send("POST", "/small", "0123456789").value().status, 200);
  EXPECT_EQ(send("POST", "/small", "0123456789a").value().status, 413);
}

TEST_F(HttpTest, SaysContinueWhenTheBodyIsWanted) {
  start();
  RawClient client(server_->port());

  client.say(
      "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: "
      "100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.hear("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.say("abc");
  EXPECT_TRUE(client.hear().ends_with("abc"));
  EXPECT_TRUE(
      raw("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: a-pony\r\n\r\n").starts_with("HTTP/1.1 4"));
}

TEST_F(HttpTest, RefusesCodedBodies) {
  start();
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n";

  EXPECT_TRUE(raw(head + "Content-Encoding: gzip\r\n\r\nabc").starts_with("HTTP/1.1 415 "));
  EXPECT_TRUE(raw(head + "Content-Encoding: identity\r\n\r\nabc").ends_with("abc"));
}

TEST_F(HttpTest, FillsASinkFromChunksOfEverySize) {
  for (const std::size_t buffer : {1u, 7u, 4096u, 100'000u}) {
    add_bulk("/bulk/" + std::to_string(buffer), into_sink(buffer));
  }
  start();
  for (const int buffer : {1, 7, 4096, 100'000}) {
    std::string body, expected;
    for (const std::size_t size : {1u, 2u, 5u, 1000u, 16383u, 16384u, 16385u, 70'000u}) {
      const std::string data(size, static_cast<char>('a' + size % 26));
      char line[32];
      std::snprintf(line, sizeof line, "%zX;ext\r\n", size);
      body.append(line).append(data).append("\r\n");
      expected += data;
    }
    const std::string head =
        "POST /bulk/" + std::to_string(buffer) + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    const std::string answer =
        raw(head + "Transfer-Encoding: chunked\r\n\r\n" + body + "0\r\n\r\n");
    EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), expected) << buffer;
  }
}

TEST_F(HttpTest, AnswersWithTheErrorOfASink) {
  add_bulk("/bulk", into_sink(1000, 5000));
  add_bulk("/refused",
           [](const Request&, std::shared_ptr<Exchange>) -> Result<std::unique_ptr<BodySink>> {
             return Error(ErrorCode::kOverloaded, "no memory for it");
           });
  start();
  const std::string body(8'000'000, 'x');
  const std::span<const std::byte> part = std::as_bytes(std::span(body));
  Request head;
  head.method = "POST";
  head.target = "/bulk";

  const auto failed = client_->blocking_send_from(head, std::span(&part, 1), nullptr);
  ASSERT_TRUE(failed.has_value()) << failed.error().message();
  EXPECT_EQ(failed->status, 422);
  EXPECT_EQ(error_of_response(*failed).message(), "digest differs");

  head.target = "/refused";
  std::uint64_t sent = 0;
  const auto refused =
      client_->blocking_send_from(head, std::span(&part, 1), [&](std::uint64_t n) { sent = n; });
  ASSERT_TRUE(refused.has_value()) << refused.error().message();
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(sent, 0u);
}

TEST_F(HttpTest, AsksBeforeItSendsALargeBodyAndOnlyThen) {
  add_bulk(
      "/bulk",
      [](const Request& request, std::shared_ptr<Exchange>) -> Result<std::unique_ptr<BodySink>> {
        const bool asks = request.headers.try_get("Expect").has_value();
        return Error(ErrorCode::kOverloaded, asks ? "asked" : "not asked");
      });
  start();
  Request head;
  head.method = "POST";
  head.target = "/bulk";
  // Of a small one nobody reads what is on its way; the answer arrives all the same.
  for (const std::size_t size : {100u, 1'000'000u, 4u << 20, (4u << 20) + 1}) {
    const std::string body(size, 'x');
    const std::span<const std::byte> part = std::as_bytes(std::span(body));
    const auto refused = client_->blocking_send_from(head, std::span(&part, 1), nullptr);
    ASSERT_TRUE(refused.has_value()) << size << ": " << refused.error().message();
    EXPECT_EQ(refused->status, 503);
    EXPECT_EQ(error_of_response(*refused).message(), size > 4u << 20 ? "asked" : "not asked");
  }
}

TEST_F(HttpTest, TellsASinkThatTheClientWentAway) {
  std::promise<std::string> cut, malformed;
  add_bulk("/cut", into_sink(1000, SIZE_MAX, &cut));
  add_bulk("/malformed", into_sink(1000, SIZE_MAX, &malformed));
  start();
  {
    RawClient client(server_->port());
    client.say("POST /cut HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc");
  }

  EXPECT_NE(cut.get_future().get(), "");
  EXPECT_TRUE(
      raw("POST /malformed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd")
          .starts_with("HTTP/1.1 400 "));
  EXPECT_NE(malformed.get_future().get(), "");
}

// --- Answers

TEST_F(HttpTest, Sends500ForAnExchangeThatIsDropped) {
  add("GET", "/dropped", [](const Request&, std::shared_ptr<Exchange>) {});
  add("GET", "/thrown",
      [](const Request&, std::shared_ptr<Exchange>) { throw std::runtime_error("oops"); });
  std::thread thread;
  add("GET", "/elsewhere", [&](const Request&, std::shared_ptr<Exchange> x) {
    thread = std::thread([x = std::move(x)]() mutable { x = nullptr; });
  });
  start();

  EXPECT_EQ(get("/dropped").value().status, 500);
  EXPECT_EQ(get("/thrown").value().status, 500);
  EXPECT_EQ(get("/elsewhere").value().status, 500);
  thread.join();
}

TEST_F(HttpTest, CutsAStreamThatIsDropped) {
  add("GET", "/events", [](const Request&, std::shared_ptr<Exchange> x) {
    x->begin_stream(Response());
    x->write("half");
  });
  start();

  EXPECT_EQ(get("/events").error().code(), ErrorCode::kDisconnected);
}

TEST_F(HttpTest, SendsAnAnswerFromWhereItLies) {
  auto memory = std::make_shared<std::vector<std::byte>>(5'000'000, std::byte{'m'});
  const std::weak_ptr<std::vector<std::byte>> watched = memory;
  add("GET", "/bytes",
      [memory = std::move(memory)](const Request&, std::shared_ptr<Exchange> x) mutable {
        const std::span<const std::byte> all(*memory);
        std::vector<BodyPart> parts(3);
        parts[0].bytes = all.first(10);
        parts[2].bytes = all.subspan(10);
        x->respond_from(Response(), std::move(parts), std::move(memory));
      });
  start();

  const auto response = get("/bytes").value();

  EXPECT_EQ(response.body, std::string(5'000'000, 'm'));
  EXPECT_EQ(send("GET", "/hello").value().status, 200);
  EXPECT_TRUE(watched.expired());
}

TEST_F(HttpTest, TellsAHandlerThatTheClientWentAway) {
  std::promise<void> gone;
  std::promise<void> asked;
  std::shared_ptr<Exchange> held;
  add("GET", "/wait", [&](const Request&, std::shared_ptr<Exchange> x) {
    held = std::move(x);
    held->on_close([&] { gone.set_value(); });
    asked.set_value();
  });
  start();
  {
    RawClient client(server_->port());
    client.say("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    asked.get_future().get();
  }

  gone.get_future().get();
  std::promise<void> again;
  held->on_close([&] { again.set_value(); });
  again.get_future().get();
  held->respond(Response());  // to nobody
}

TEST_F(HttpTest, DoesNotCallOnCloseOfARequestThatIsOver) {
  std::atomic<int> calls = 0;
  add("GET", "/done", [&](const Request&, std::shared_ptr<Exchange> x) {
    x->on_close([&] { ++calls; });
    x->respond(text_response("done"));
  });
  start();

  EXPECT_EQ(get("/done").value().body, "done");
  server_->blocking_stop(1s);
  EXPECT_EQ(calls, 0);
}

TEST_F(HttpTest, CutsAReaderThatFallsBehind) {
  std::promise<void> gone;
  std::shared_ptr<Exchange> stream;
  add("GET", "/flood", [&](const Request&, std::shared_ptr<Exchange> x) {
    stream = std::move(x);
    stream->on_close([&] { gone.set_value(); });
    stream->begin_stream(Response());
  });
  start();
  RawClient client(server_->port(), 4096);
  client.say("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  client.hear("\r\n\r\n");

  auto is_gone = gone.get_future();
  for (int i = 0; i < 1000; ++i) stream->write(std::string(64u << 10, 'x'));

  is_gone.get();
}

// --- Stopping

TEST_F(HttpTest, LetsARunningAnswerFinishWhenItStops) {
  std::promise<std::shared_ptr<Exchange>> asked;
  add("GET", "/wait",
      [&](const Request&, std::shared_ptr<Exchange> x) { asked.set_value(std::move(x)); });
  start();
  auto answer = std::async(std::launch::async, [&] { return get("/wait"); });
  auto exchange = asked.get_future().get();
  auto stopped = std::async(std::launch::async, [&] { server_->blocking_stop(60s); });

  exchange->respond(text_response("late"));

  EXPECT_EQ(answer.get().value().body, "late");
  stopped.get();
  EXPECT_EQ(server_->open_connections(), 0u);
  EXPECT_EQ(get("/hello").error().code(), ErrorCode::kDisconnected);
}

TEST_F(HttpTest, DoesNotWaitForAnAnswerThatClosesAtStop) {
  std::promise<std::shared_ptr<Exchange>> asked;
  add("GET", "/wait", [&](const Request&, std::shared_ptr<Exchange> x) {
    x->close_at_stop();
    asked.set_value(std::move(x));
  });
  start();
  auto answer = std::async(std::launch::async, [&] { return get("/wait"); });
  const auto exchange = asked.get_future().get();

  server_->blocking_stop(5min);  // or the test runs out of time

  EXPECT_EQ(answer.get().error().code(), ErrorCode::kDisconnected);
}

TEST_F(HttpTest, CutsARunningAnswerWhenTheGraceIsOver) {
  std::promise<std::shared_ptr<Exchange>> asked;
  add("GET", "/wait",
      [&](const Request&, std::shared_ptr<Exchange> x) { asked.set_value(std::move(x)); });
  start();
  auto answer = std::async(std::launch::async, [&] { return get("/wait"); });
  auto exchange = asked.get_future().get();
  std::atomic<bool> gone = false;
  exchange->on_close([&] { gone = true; });

  server_->blocking_stop(0ms);

  EXPECT_EQ(answer.get().error().code(), ErrorCode::kDisconnected);
  EXPECT_TRUE(gone);
  server_.reset();
  exchange->write("to a server that is no more");
  bool told = false;
  exchange->on_close([&] { told = true; });
  EXPECT_TRUE(told);
}

TEST_F(HttpTest, ClosesAConnectionThatSendsNoWholeHead) {
  add("GET", "/x", [](const Request&, std::shared_ptr<Exchange>) {});
  ServerOptions options;
  options.port = 0;
  options.header_timeout = 0s;
  options.idle_timeout = 0s;
  const auto server = Server::create(options, std::move(routes_)).value();
  RawClient slow(server->port());
  slow.say("GET /x HT");
  RawClient silent(server->port());

  EXPECT_EQ(slow.hear(), "");
  EXPECT_EQ(silent.hear(), "");
}

}  // namespace
}  // namespace weft::http
