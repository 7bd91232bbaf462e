// The client against servers that misbehave.
#include "weft/http/fixture_test.h"

namespace weft::http {
namespace {

TEST(HttpClient, SendsAgainOnANewConnectionWhenTheKeptOneHadClosed) {
  const std::string ok = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n";
  const auto once =
      [ok](int descriptor) {  // keeps the connection, takes the next request, and closes
        answer_with(ok + "1")(descriptor);
        read_request(descriptor);
      };
  ScriptedServer server({once, answer_with(ok + "2")});
  const auto client = Client::make(server.url());

  EXPECT_EQ(client->blocking_send(request_of("GET")).value().body, "1");
  EXPECT_EQ(client->blocking_send(request_of("GET")).value().body, "2");
}

TEST(HttpClient, DoesNotSendAPostTwiceThatMayHaveRun) {
  const auto once = [](int descriptor) {
    answer_with("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(descriptor);
    read_request(descriptor);
  };
  ScriptedServer server({once});
  const auto client = Client::make(server.url());

  EXPECT_EQ(client->blocking_send(request_of("POST")).value().status, 200);
  EXPECT_EQ(client->blocking_send(request_of("POST")).error().code(), ErrorCode::kDisconnected);
}

TEST(HttpClient, UsesAnotherConnectionAfterTheServerClosed) {
  ScriptedServer server({answer_with("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
                         answer_with("HTTP/1.1 201 OK\r\nConnection: close\r\n\r\nuntil the end")});
  const auto client = Client::make(server.url());

  EXPECT_EQ(client->blocking_send(request_of("POST")).value().status, 200);
  const auto second = client->blocking_send(request_of("GET")).value();
  EXPECT_EQ(second.status, 201);
  EXPECT_EQ(second.body, "until the end");
}

TEST(HttpClient, ReadsChunkedAnswersAndSkips1xx) {
  ScriptedServer server(
      {answer_with("HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: "
                   "chunked\r\n\r\n"
                   "2;e\r\nab\r\n1\r\nc\r\n0\r\nT: v\r\n\r\n")});

  EXPECT_EQ(Client::make(server.url())->blocking_send(request_of("GET")).value().body, "abc");
}

TEST(HttpClient, NamesWhatIsWrong) {
  const auto code_for = [](std::string text, ClientOptions options = {}) {
    ScriptedServer server({answer_with(std::move(text))});
    return Client::make(server.url(), options)->blocking_send(request_of("GET")).error().code();
  };
  EXPECT_EQ(code_for("SSH-2.0-OpenSSH\r\n\r\n"), ErrorCode::kCorrupt);
  EXPECT_EQ(code_for("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n"),
            ErrorCode::kCorrupt);
  EXPECT_EQ(code_for("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), ErrorCode::kDisconnected);
  EXPECT_EQ(code_for(""), ErrorCode::kDisconnected);
  ClientOptions small;
  small.response_limit_bytes = 3;
  EXPECT_EQ(code_for("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", small),
            ErrorCode::kTooLarge);
}

TEST(HttpClient, GivesUpAtTheDeadline) {
  std::promise<void> over;
  ScriptedServer server({[&](int) { over.get_future().get(); }});
  ClientOptions options;
  options.request_timeout = 50ms;

  const auto answer = Client::make(server.url(), options)->blocking_send(request_of("GET"));

  over.set_value();
  EXPECT_EQ(answer.error().code(), ErrorCode::kDeadline);
}

// Without an answer, without reading a body, and in the middle of an answer.
TEST(HttpClient, GivesUpOnAServerThatFallsSilent) {
  std::promise<void> over;
  const auto silence = over.get_future().share();
  const auto stop = [silence](int) { silence.get(); };
  const auto half = [silence](int descriptor) {
    answer_with("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")(descriptor);
    silence.get();
  };
  ScriptedServer mute({stop}), deaf({stop}), halting({half});
  ClientOptions options;
  options.idle_timeout = 50ms;
  const std::string body(50'000'000, 'b');
  const std::span<const std::byte> part = std::as_bytes(std::span(body));

  const auto unanswered = Client::make(mute.url(), options)->blocking_send(request_of("GET"));
  const auto unread = Client::make(deaf.url(), options)
                          ->blocking_send_from(request_of("POST"), std::span(&part, 1), nullptr);
  const auto broken = Client::make(halting.url(), options)->blocking_send(request_of("GET"));

  over.set_value();
  for (const auto& answer : {unanswered, unread, broken}) {
    EXPECT_EQ(answer.error().code(), ErrorCode::kDeadline);
    EXPECT_NE(answer.error().message().find("silent for 0.05 s"), std::string::npos)
        << answer.error().message();
  }
}

TEST(HttpClient, EndsACallThatIsCancelled) {
  std::promise<void> asked, over;
  ScriptedServer server({[&](int descriptor) {
    read_request(descriptor);
    asked.set_value();
    over.get_future().get();
  }});
  const auto client = Client::make(server.url());
  auto call =
      std::async(std::launch::async, [&] { return client->blocking_send(request_of("GET")); });
  asked.get_future().get();

  client->cancel();

  EXPECT_EQ(call.get().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(client->blocking_send(request_of("GET")).error().code(), ErrorCode::kCancelled);
  over.set_value();
}

TEST(HttpClient, SendsABulkBodyToAServerThatSaysNoContinue) {
  const std::string body(5'000'000, 'b');
  std::size_t received = 0;
  ScriptedServer server({[&](int descriptor) {
    read_request(descriptor);
    char piece[4096];
    while (received < body.size())
      received += static_cast<std::size_t>(recv(descriptor, piece, sizeof piece, 0));
    const std::string ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    EXPECT_EQ(send(descriptor, ok.data(), ok.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(ok.size()));
  }});
  const std::span<const std::byte> part = std::as_bytes(std::span(body));

  const auto answer = Client::make(server.url())
                          ->blocking_send_from(request_of("POST"), std::span(&part, 1), nullptr);

  EXPECT_EQ(answer.value().status, 200);
  EXPECT_EQ(received, body.size());
}

TEST(HttpClient, StopsAStreamWhenThePieceSaysSo) {
  ScriptedServer server({answer_with("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")});
  std::string heard;

  const auto answer = Client::make(server.url())
                          ->blocking_send_streaming(request_of("GET"), [&](std::string_view piece) {
                            heard += piece;
                            return heard.size() < 3;
                          });

  EXPECT_TRUE(answer.has_value());
  EXPECT_EQ(heard, "abc");
}

}  // namespace
}  // namespace weft::http
