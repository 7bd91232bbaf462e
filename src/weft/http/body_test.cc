// Bodies that are sent from files and received into a caller's memory, and keys that are asked for
// before any body.
#include <atomic>
#include <filesystem>
#include <fstream>

#include "weft/http/fixture_test.h"
#include "weft/testing/temporary_dir.h"

namespace weft::http {
namespace {

std::string pattern_of(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i * 7 % 23);
  return text;
}

BodyPart part_of(std::shared_ptr<const File> file, std::uint64_t offset, std::uint64_t size) {
  BodyPart part;
  part.file = std::move(file);
  part.offset_bytes = offset;
  part.size_bytes = size;
  return part;
}

BodyPart part_of(std::string_view text) {
  BodyPart part;
  part.bytes = std::as_bytes(std::span(text));
  return part;
}

// How much of a body has come.
class Arrived {
 public:
  void set(std::size_t bytes) {
    bytes_.store(bytes);
    bytes_.notify_all();
  }
  void wait_for(std::size_t bytes) {
    for (std::size_t now = bytes_; now < bytes; now = bytes_) bytes_.wait(now);
  }

 private:
  std::atomic<std::size_t> bytes_ = 0;
};

// A body received into memory of the right size, as a puller does.
class MemorySink final : public BodySink {
 public:
  explicit MemorySink(std::size_t size) : body_(size, '\0') {}
  Result<std::span<std::byte>> buffer() override {
    return std::as_writable_bytes(std::span(body_)).subspan(used_);
  }
  Result<void> filled(std::size_t size) override {
    used_ += size;
    if (arrived_ != nullptr) arrived_->set(used_);
    if (used_ > fail_after_) return Error(ErrorCode::kCorrupt, "digest differs");
    return {};
  }
  void finish() override {
    ++finished_;
    if (exchange_) exchange_->respond(Response());
  }
  void abort(const Error& error) override { aborted_ = error.message(); }

  std::string_view body() const { return std::string_view(body_).substr(0, used_); }
  int finished() const { return finished_; }
  const std::string& aborted() const { return aborted_; }
  void fail_after(std::size_t size) { fail_after_ = size; }
  void tell(Arrived& arrived) { arrived_ = &arrived; }
  void answer(std::shared_ptr<Exchange> exchange) { exchange_ = std::move(exchange); }

 private:
  std::string body_;
  std::size_t used_ = 0;
  std::size_t fail_after_ = SIZE_MAX;
  Arrived* arrived_ = nullptr;
  std::shared_ptr<Exchange> exchange_;
  int finished_ = 0;
  std::string aborted_;
};

class BodyTest : public HttpTest {
 protected:
  std::shared_ptr<const File> file_of(std::string_view text) {
    EXPECT_TRUE(blocking_write_file(dir_ / "file", text).has_value());
    return std::make_shared<const File>(File::open(dir_ / "file").value());
  }
  // GET /parts answers with `parts`.
  void serve(std::vector<BodyPart> parts) {
    add("GET", "/parts", [parts](const Request&, std::shared_ptr<Exchange> x) {
      x->respond_from(Response(), parts, nullptr);
    });
    start();
  }

  TemporaryDir dir_;
};

TEST_F(BodyTest, SendsFilesAndMemoryInOrder) {
  const std::string text = pattern_of(3'000'000);
  const auto file = file_of(text);
  serve({part_of("one"), part_of(file, 5, 2'500'000), part_of("two"), part_of(file, 0, 0),
         part_of(file, 2'999'999, 1)});

  EXPECT_EQ(get("/parts").value().body,
            "one" + text.substr(5, 2'500'000) + "two" + text.substr(2'999'999));
  const Response head = send("HEAD", "/parts").value();
  EXPECT_EQ(head.headers.try_get("Content-Length"), "2500007");
  EXPECT_EQ(head.body, "");
}

TEST_F(BodyTest, CutsAnAnswerWhoseFileBecameShorter) {
  const auto file = file_of(pattern_of(3'000'000));
  serve({part_of(file, 0, 3'000'000)});
  std::filesystem::resize_file(dir_ / "file", 1'500'000);

  EXPECT_EQ(get("/parts").error().code(), ErrorCode::kDisconnected);
  EXPECT_EQ(get("/hello").value().status, 200);
}

TEST_F(BodyTest, OutlivesAReaderOfAFileThatGoesAway) {
  const auto file = file_of(pattern_of(3'000'000));
  std::promise<void> gone;
  add("GET", "/large", [&](const Request&, std::shared_ptr<Exchange> x) {
    x->on_close([&] { gone.set_value(); });
    x->respond_from(Response(), std::vector<BodyPart>(20, part_of(file, 0, 3'000'000)), nullptr);
  });
  start();
  {
    RawClient client(server_->port(), 4096);
    client.say("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    client.hear("\r\n\r\n");
  }

  gone.get_future().get();
  EXPECT_EQ(get("/hello").value().status, 200);
}

TEST_F(BodyTest, ReceivesIntoASinkWithALengthOrInChunks) {
  const std::string text = pattern_of(2'000'000);
  add("GET", "/chunks", [&](const Request&, std::shared_ptr<Exchange> x) {
    x->begin_stream(Response());
    for (std::size_t at = 0; at < text.size(); at += 100'000) x->write(text.substr(at, 100'000));
    x->end();
  });
  serve({part_of(text)});
  for (const char* target : {"/parts", "/chunks"}) {
    MemorySink sink(text.size());
    Request request = request_of("GET");
    request.target = target;

    const auto response = client_->blocking_send_into(request, sink);

    ASSERT_TRUE(response.has_value()) << response.error().message();
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, "");
    EXPECT_TRUE(sink.body() == text) << target;
    EXPECT_EQ(sink.finished(), 1);
    EXPECT_EQ(sink.aborted(), "");
  }
}

TEST_F(BodyTest, KeepsOtherAnswersOutOfTheSink) {
  serve({part_of("whole")});
  MemorySink sink(10);
  Request missing = request_of("GET");
  missing.target = "/nothing";
  Request ranged = request_of("GET");
  ranged.target = "/parts";
  ranged.headers.add("Range", "bytes=3-4");

  EXPECT_EQ(client_->blocking_send_into(missing, sink).value().body, R"({"detail":"Not Found"})");
  EXPECT_EQ(client_->blocking_send_into(ranged, sink).value().body, "whole");
  EXPECT_EQ(sink.body(), "");
  EXPECT_EQ(sink.finished(), 0);
}

TEST_F(BodyTest, EndsABodyThatItsSinkRefuses) {
  const std::string text = pattern_of(1'000'000);
  serve({part_of(text)});
  Request request = request_of("GET");
  request.target = "/parts";
  MemorySink failing(text.size());
  failing.fail_after(10);
  EXPECT_EQ(client_->blocking_send_into(request, failing).error().code(), ErrorCode::kCorrupt);
  MemorySink small(text.size() - 1);
  EXPECT_EQ(client_->blocking_send_into(request, small).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(small.aborted() + failing.aborted(), "");
  EXPECT_EQ(small.finished() + failing.finished(), 0);
  server_.reset();  // it may still be sending the text
}

TEST(BodyClient, TellsASinkOfABodyThatBreaksOff) {
  ScriptedServer server({answer_with("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"),
                         answer_with("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz")});
  const auto client = Client::make(server.url());
  MemorySink cut(10), malformed(10);

  EXPECT_EQ(client->blocking_send_into(request_of("GET"), cut).error().code(),
            ErrorCode::kDisconnected);
  EXPECT_EQ(client->blocking_send_into(request_of("GET"), malformed).error().code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(cut.body(), "abc");
  EXPECT_NE(cut.aborted(), "");
  EXPECT_NE(malformed.aborted(), "");
  EXPECT_EQ(cut.finished() + malformed.finished(), 0);
}

// Reads wait for much at once where much is to come, but not for longer than it takes to come.
TEST_F(BodyTest, GetsWhatCameOfABodyThatStops) {
  Arrived arrived;
  add_bulk("/bulk",
           [&](const Request&, std::shared_ptr<Exchange> x) -> Result<std::unique_ptr<BodySink>> {
             auto sink = std::make_unique<MemorySink>(2'000'000);
             sink->tell(arrived);
             sink->answer(std::move(x));
             return std::unique_ptr<BodySink>(std::move(sink));
           });
  start();
  const std::string body(2'000'000, 'x');
  RawClient client(server_->port());
  client.say("POST /bulk HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n");

  client.say(body.substr(0, 300'000));
  arrived.wait_for(300'000);
  client.say(body.substr(0, 1'000));  // the server waits by now, for more than that
  arrived.wait_for(301'000);
  client.say(body.substr(301'000));
  client.say("GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");

  EXPECT_TRUE(client.hear().ends_with("hello"));
}

TEST(BodyClient, DoesNotTakeASlowBodyForSilence) {
  Arrived arrived;
  const std::string body(200'000, 'x');
  ScriptedServer server({[&](int descriptor) {
    answer_with("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" +
                body.substr(0, 50'000))(descriptor);
    arrived.wait_for(50'000);
    EXPECT_EQ(send(descriptor, body.data(), 1'000, MSG_NOSIGNAL), 1'000);
    arrived.wait_for(51'000);
    EXPECT_EQ(send(descriptor, body.data(), 149'000, MSG_NOSIGNAL), 149'000);
  }});
  ClientOptions options;
  options.idle_timeout = 500ms;
  MemorySink sink(200'000);
  sink.tell(arrived);

  const auto answer =
      Client::make(server.url(), options)->blocking_send_into(request_of("GET"), sink);

  ASSERT_TRUE(answer.has_value()) << answer.error().message();
  EXPECT_EQ(sink.body().size(), 200'000u);
}

// --- Keys

TEST_F(BodyTest, AsksForAKeyBeforeTheBody) {
  int calls = 0;
  add_bulk("/bulk",
           [&](const Request&, std::shared_ptr<Exchange>) -> Result<std::unique_ptr<BodySink>> {
             ++calls;
             return Error(ErrorCode::kInternal, "not reached");
           });
  add("GET", "/open",
      [](const Request&, std::shared_ptr<Exchange> x) { x->respond(text_response("in")); });
  routes_.back().access = Access::kOpen;
  options_.keys.admin_key = "admin-secret";
  start();
  const std::string head = "POST /bulk HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n";

  for (const char* key : {"", "Authorization: Bearer wrong-secret\r\n"}) {
    const std::string answer = raw(head + key + "Expect: 100-continue\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 401 ")) << answer;
    EXPECT_NE(answer.find("WWW-Authenticate: Bearer\r\n"), std::string::npos);
    EXPECT_NE(answer.find(R"({"error":{"message":")"), std::string::npos) << answer;
    EXPECT_EQ(answer.find("secret"), std::string::npos);
  }
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(get("/hello").value().status, 401) << "a route that says nothing is not open";
  EXPECT_EQ(get("/open").value().status, 200);
}

TEST_F(BodyTest, SendsItsKey) {
  options_.keys.read_key = client_options_.key = "read-secret";
  add("GET", "/private",
      [](const Request&, std::shared_ptr<Exchange> x) { x->respond(text_response("in")); });
  routes_.back().access = Access::kRead;
  start();

  EXPECT_EQ(get("/private").value().body, "in");
  EXPECT_EQ(Client::make(client_->server())->blocking_send(request_of("GET")).value().status, 404);
  Request request = request_of("GET");
  request.target = "/private";
  EXPECT_EQ(Client::make(client_->server())->blocking_send(request).value().status, 401);
}

}  // namespace
}  // namespace weft::http
