// https on both sides, with certificates that are made here.
#include <cstdio>
#include <filesystem>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "weft/base/file.h"
#include "weft/http/fixture_test.h"
#include "weft/testing/temporary_dir.h"

namespace weft::http {
namespace {

// A key and its certificate, by an authority or by itself.
class Identity {
 public:
  Identity(std::string subject, std::string alternatives, const Identity* issuer = nullptr,
           long valid_seconds = 3600)
      : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    ASN1_INTEGER_set(X509_get_serialNumber(certificate_), 1);
    X509_set_version(certificate_, 2);
    X509_gmtime_adj(X509_getm_notBefore(certificate_), -7200);
    X509_gmtime_adj(X509_getm_notAfter(certificate_), valid_seconds);
    X509_set_pubkey(certificate_, key_);
    X509_NAME* const name = X509_get_subject_name(certificate_);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
    const Identity& by = issuer != nullptr ? *issuer : *this;
    X509_set_issuer_name(certificate_, X509_get_subject_name(by.certificate_));
    extend(NID_basic_constraints, alternatives.empty() ? "critical,CA:TRUE" : "CA:FALSE");
    if (!alternatives.empty()) extend(NID_subject_alt_name, alternatives);
    EXPECT_GT(X509_sign(certificate_, by.key_, EVP_sha256()), 0);
  }
  ~Identity() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  std::string write_certificate(const std::filesystem::path& path) const {
    FILE* const file = std::fopen(path.c_str(), "a");
    PEM_write_X509(file, certificate_);
    std::fclose(file);
    return path;
  }
  std::string write_key(const std::filesystem::path& path, const char* passphrase = nullptr) const {
    FILE* const file = std::fopen(path.c_str(), "a");
    const int size = passphrase == nullptr ? 0 : static_cast<int>(std::strlen(passphrase));
    PEM_write_PrivateKey(file, key_, passphrase == nullptr ? nullptr : EVP_aes_128_cbc(),
                         reinterpret_cast<const unsigned char*>(passphrase), size, nullptr,
                         nullptr);
    std::fclose(file);
    return path;
  }

 private:
  void extend(int kind, const std::string& value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    X509_add_ext(certificate_, extension, -1);
    X509_EXTENSION_free(extension);
  }

  EVP_PKEY* key_;
  X509* certificate_;
};

// OpenSSL's plain server side on a blocking socket; it sends session tickets, as nginx does.
class TlsPeer {
 public:
  TlsPeer(const std::string& file, int descriptor)
      : context_(SSL_CTX_new(TLS_server_method())), ssl_(nullptr) {
    SSL_CTX_use_certificate_chain_file(context_, file.c_str());
    SSL_CTX_use_PrivateKey_file(context_, file.c_str(), SSL_FILETYPE_PEM);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, descriptor);
    EXPECT_EQ(SSL_accept(ssl_), 1);
  }
  ~TlsPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  void read_head() {
    std::string text;
    char c = 0;
    while (!text.ends_with("\r\n\r\n") && SSL_read(ssl_, &c, 1) == 1) text += c;
  }
  void say(std::string_view text) { SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  void say_goodbye() { SSL_shutdown(ssl_); }

 private:
  SSL_CTX* context_;
  SSL* ssl_;
};

class TlsTest : public HttpTest {
 protected:
  TlsTest() : authority_("an authority", ""), server_identity_("s", "IP:127.0.0.1", &authority_) {
    file_ = server_identity_.write_certificate(folder_.path() / "server.pem");
    server_identity_.write_key(file_);
    client_options_.ca_file = authority_.write_certificate(folder_.path() / "authority.pem");
  }
  void start_tls(const std::string& file) {
    auto tls = blocking_load_certificate(file, "");
    ASSERT_TRUE(tls.has_value()) << tls.error().message();
    options_.tls = *tls;
    start();
  }
  Error refusal(Url url, ClientOptions options) {
    auto answer =
        Client::make(std::move(url), std::move(options))->blocking_send(request_of("GET"));
    return answer ? Error(ErrorCode::kInternal, "no error") : answer.error();
  }

  TemporaryDir folder_;
  Identity authority_, server_identity_;
  std::string file_;
};

TEST_F(TlsTest, AnswersRequestsOfManySizesOverOneConnection) {
  start_tls(file_);

  for (const std::size_t size : {0u, 1u, 1000u, 16383u, 16384u, 16385u, 65537u, 1048576u}) {
    const std::string body(size, 'b');
    const auto response = send("POST", "/echo", body);
    ASSERT_TRUE(response.has_value()) << response.error().message();
    EXPECT_EQ(response->body, body);
  }
  EXPECT_EQ(get("/hello").value().body, "hello");
  EXPECT_EQ(server_->counts().accepted, 1u);
}

TEST_F(TlsTest, AnswersManyAtOnceAndKeepsTheirConnections) {
  start_tls(file_);
  std::vector<Request> requests(200, request_of("GET"));
  for (Request& request : requests) request.target = "/hello";

  for (int round = 0; round < 2; ++round) {
    for (const auto& response : client_->blocking_send_all(requests)) {
      ASSERT_TRUE(response.has_value()) << response.error().message();
      EXPECT_EQ(response->body, "hello");
    }
  }
  EXPECT_LE(server_->counts().accepted, client_options_.max_connections);
}

struct Collected final : BodySink {
  Result<std::span<std::byte>> buffer() override { return std::span(memory); }
  Result<void> filled(std::size_t size) override {
    body.append(reinterpret_cast<const char*>(memory.data()), size);
    return {};
  }
  void finish() override {}
  void abort(const Error&) override {}

  std::vector<std::byte> memory = std::vector<std::byte>(100'001);
  std::string body;
};

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  return text;
}

TEST_F(TlsTest, MovesBulkBodiesBothWaysByteForByte) {
  const std::string sent = pattern(5'000'003);
  const auto file_path = folder_.path() / "data";
  ASSERT_TRUE(blocking_write_file(file_path, sent).has_value());
  const auto file = std::make_shared<const File>(*File::open(file_path));
  add_bulk("/bulk", into_sink(70'001));
  add("GET", "/parts", [&](const Request&, std::shared_ptr<Exchange> x) {
    std::vector<BodyPart> parts(4);
    parts[0].bytes = std::as_bytes(std::span(sent)).first(7);
    parts[1].bytes = std::as_bytes(std::span(sent)).subspan(7, 1'000'000);
    parts[2].file = parts[3].file = file;
    parts[2].offset_bytes = 1'000'007;
    parts[2].size_bytes = 3'000'000;
    parts[3].offset_bytes = 4'000'007;
    parts[3].size_bytes = sent.size() - 4'000'007;
    x->respond_from(Response(), std::move(parts), nullptr);
  });
  start_tls(file_);
  const auto bytes = std::as_bytes(std::span(sent));
  const std::span<const std::byte> parts[] = {bytes.first(10), bytes.subspan(10, 100'000),
                                              bytes.subspan(100'010)};
  Request up = request_of("POST");
  up.target = "/bulk";
  Request down = request_of("GET");
  down.target = "/parts";

  EXPECT_TRUE(client_->blocking_send_from(up, parts, nullptr).value().body == sent);
  EXPECT_TRUE(client_->blocking_send(down).value().body == sent);
  Collected into;
  EXPECT_EQ(client_->blocking_send_into(down, into).value().status, 200);
  EXPECT_TRUE(into.body == sent);
  EXPECT_EQ(server_->counts().accepted, 1u);
}

TEST_F(TlsTest, StreamsAnAnswerPieceByPiece) {
  add("GET", "/events", [](const Request&, std::shared_ptr<Exchange> x) {
    x->begin_stream(Response());
    std::thread([x] {
      for (int i = 0; i < 1000; ++i) x->write("data: " + std::to_string(i) + "\n\n");
      x->end();
    }).detach();
  });
  start_tls(file_);
  std::string heard, expected;
  Request request = request_of("GET");
  request.target = "/events";

  const auto response = client_->blocking_send_streaming(request, [&](std::string_view piece) {
    heard += piece;
    return true;
  });

  ASSERT_TRUE(response.has_value()) << response.error().message();
  for (int i = 0; i < 1000; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  EXPECT_EQ(heard, expected);
}

TEST_F(TlsTest, RefusesABodyBeforeAByteOfItAndWithinIt) {
  add_bulk("/cut", into_sink(1000, 5000));
  add_bulk("/refused",
           [](const Request&, std::shared_ptr<Exchange>) -> Result<std::unique_ptr<BodySink>> {
             return Error(ErrorCode::kOverloaded, "no memory for it");
           });
  start_tls(file_);
  const std::string body(8'000'000, 'x');
  const auto part = std::as_bytes(std::span(body));
  Request head = request_of("POST");

  head.target = "/cut";
  const auto cut = client_->blocking_send_from(head, std::span(&part, 1), nullptr);
  ASSERT_TRUE(cut.has_value()) << cut.error().message();
  EXPECT_EQ(error_of_response(*cut).message(), "digest differs");

  head.target = "/refused";
  std::uint64_t sent = 0;
  const auto refused =
      client_->blocking_send_from(head, std::span(&part, 1), [&](std::uint64_t n) { sent = n; });
  ASSERT_TRUE(refused.has_value()) << refused.error().message();
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(sent, 0u);
}

TEST_F(TlsTest, TakesASessionTicketForNoAnswer) {
  ScriptedServer server({[&](int descriptor) {
    TlsPeer peer(file_, descriptor);  // has sent its tickets
    peer.read_head();
    peer.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n");
    peer.say_goodbye();
  }});
  Url url = server.url();
  url.scheme = "https";
  const std::string body(5'000'000, 'x');
  const auto part = std::as_bytes(std::span(body));
  std::uint64_t sent = 0;

  const auto answer = Client::make(url, client_options_)
                          ->blocking_send_from(request_of("POST"), std::span(&part, 1),
                                               [&](std::uint64_t n) { sent = n; });

  ASSERT_TRUE(answer.has_value()) << answer.error().message();
  EXPECT_EQ(answer->status, 413);
  EXPECT_EQ(sent, 0u);
}

TEST_F(TlsTest, AnEndThatWasNotAnnouncedIsACut) {
  for (const std::string head : {"", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n"}) {
    for (const bool announced : {false, true}) {
      ScriptedServer server({[&](int descriptor) {
        TlsPeer peer(file_, descriptor);
        peer.read_head();
        peer.say("HTTP/1.1 200 OK\r\n" + head + "\r\n");
        peer.say(head.starts_with("T") ? "2\r\nab\r\n" : "ab");
        if (announced) peer.say_goodbye();
      }});
      Url url = server.url();
      url.scheme = "https";

      const auto answer = Client::make(url, client_options_)->blocking_send(request_of("GET"));

      if (head.empty() && announced) {
        EXPECT_EQ(answer.value().body, "ab");
      } else {
        ASSERT_FALSE(answer.has_value()) << head << announced;
        EXPECT_EQ(answer.error().code(), ErrorCode::kDisconnected);
      }
    }
  }
}

// --- Whom to trust

TEST_F(TlsTest, TrustsOnlyWhomItIsTold) {
  start_tls(file_);
  const Identity stranger("a stranger", "");

  ClientOptions options;
  options.ca_file = stranger.write_certificate(folder_.path() / "stranger.pem");
  for (const std::string& file : {options.ca_file, std::string()}) {
    options.ca_file = file;
    const Error error = refusal(client_->server(), options);
    EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated);
    EXPECT_NE(error.message().find(client_->server().text()), std::string::npos);
    EXPECT_NE(error.message().find("--ca"), std::string::npos) << error.message();
  }
  EXPECT_EQ(get("/hello").value().status, 200);
}

TEST_F(TlsTest, WantsTheHostInTheCertificate) {
  start_tls(file_);
  Url url = client_->server();
  url.host = "localhost";

  const Error error = refusal(url, client_options_);

  EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated);
  EXPECT_NE(error.message().find("localhost"), std::string::npos);
  EXPECT_NE(error.message().find("hostname mismatch"), std::string::npos) << error.message();
}

TEST_F(TlsTest, TakesANameAndAChainAndAKeyOfItsOwnFile) {
  const Identity middle("between", "", &authority_);
  const Identity named("n", "DNS:localhost", &middle);
  const std::string chain = named.write_certificate(folder_.path() / "chain.pem");
  middle.write_certificate(chain);
  const auto tls = blocking_load_certificate(chain, named.write_key(folder_.path() / "key.pem"));
  ASSERT_TRUE(tls.has_value()) << tls.error().message();
  options_.tls = *tls;
  start();
  Url url = client_->server();
  url.host = "localhost";
  Request request = request_of("GET");
  request.target = "/hello";

  const auto answer = Client::make(url, client_options_)->blocking_send(request);
  ASSERT_TRUE(answer.has_value()) << answer.error().message();
  EXPECT_EQ(answer->body, "hello");
  EXPECT_NE(refusal(client_->server(), client_options_).message().find("IP address mismatch"),
            std::string::npos);
}

TEST_F(TlsTest, RefusesACertificateWhoseTimeIsOver) {
  const Identity old("old", "IP:127.0.0.1", &authority_, -60);
  const std::string file = old.write_certificate(folder_.path() / "old.pem");
  old.write_key(file);
  start_tls(file);

  const Error error = refusal(client_->server(), client_options_);

  EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated);
  EXPECT_NE(error.message().find("certificate has expired"), std::string::npos);
}

TEST_F(TlsTest, SaysWhichFileIsNoGood) {
  const Identity other("other", "IP:127.0.0.1");
  const std::string key = other.write_key(folder_.path() / "other_key.pem");
  const std::string locked = other.write_key(folder_.path() / "locked.pem", "secret");
  const std::string bare = other.write_certificate(folder_.path() / "bare.pem");
  const std::string absent = folder_.path() / "absent.pem";

  const auto wrong = [&](const std::string& certificate, const std::string& key_file,
                         const std::string& named, const char* why) {
    const auto loaded = blocking_load_certificate(certificate, key_file);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_EQ(loaded.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(loaded.error().message().starts_with(named + ": ")) << loaded.error().message();
    EXPECT_NE(loaded.error().message().find(why), std::string::npos) << loaded.error().message();
  };
  wrong(absent, "", absent, "No such file");
  wrong(key, "", key, "no certificate");
  wrong(bare, "", bare, "no private key");
  wrong(bare, absent, absent, "No such file");
  wrong(bare, locked, locked, "no private key");
  wrong(file_, key, key, "key values mismatch");

  ClientOptions options;
  options.ca_file = absent;
  Url url;
  url.scheme = "https";
  url.host = "127.0.0.1";
  const Error error = refusal(url, options);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find(absent), std::string::npos) << error.message();
}

// --- Who speaks otherwise, or not at all

TEST_F(TlsTest, EndsWithWhoSpeaksNoTls) {
  start_tls(file_);

  const std::string plain = raw("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(plain.starts_with("HTTP/1.1 400 ")) << plain;
  EXPECT_NE(plain.find("speaks https only"), std::string::npos) << plain;
  EXPECT_EQ(raw("GE\r\n\r\n").find("<TIMEOUT>"), std::string::npos);
  EXPECT_EQ(raw(std::string(100'000, '\x16')).find("<TIMEOUT>"), std::string::npos);
  EXPECT_EQ(get("/hello").value().body, "hello");
}

TEST_F(TlsTest, SaysThatAPortHasNoTls) {
  start();
  Url url = client_->server();
  url.scheme = "https";

  EXPECT_EQ(refusal(url, client_options_).code(), ErrorCode::kUnsupported);
}

TEST_F(TlsTest, TimesOutASilentHandshake) {
  options_.header_timeout = 1s;
  start_tls(file_);
  RawClient silent(server_->port());
  RawClient slow(server_->port());
  slow.say("\x16\x03\x01\x02");

  EXPECT_EQ(silent.hear(), "");
  EXPECT_EQ(slow.hear(), "");
  EXPECT_EQ(server_->counts().timed_out, 2u);
  EXPECT_EQ(get("/hello").value().body, "hello");
}

TEST_F(TlsTest, StopsDuringAHandshakeAndOnIdleConnections) {
  start_tls(file_);
  RawClient silent(server_->port());
  EXPECT_EQ(get("/hello").value().body, "hello");

  server_->blocking_stop(10s);

  EXPECT_EQ(server_->open_connections(), 0u);
  EXPECT_EQ(silent.hear(), "");
}

// Passes on what comes, from `descriptor` to `port` only `limit` bytes, then closes.
void relay(int descriptor, std::uint16_t port, std::size_t limit) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  pollfd ends[] = {{descriptor, POLLIN, 0}, {server, POLLIN, 0}};
  char piece[4096];
  while (poll(ends, 2, 10'000) > 0) {
    const bool up = (ends[0].revents & POLLIN) != 0;
    const auto size =
        recv(ends[up ? 0 : 1].fd, piece, up ? std::min(limit, sizeof piece) : sizeof piece, 0);
    if (size <= 0) break;
    if (up) limit -= static_cast<std::size_t>(size);
    ::send(ends[up ? 1 : 0].fd, piece, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  }
  close(server);
}

TEST_F(TlsTest, SurvivesACutAnywhere) {
  start_tls(file_);
  const std::string body(30'000, 'x');
  for (const std::size_t limit :
       {1u, 4u, 6u, 100u, 250u, 330u, 400u, 480u, 500u, 700u, 2000u, 17'000u, 30'000u}) {
    ScriptedServer cutter({[&](int descriptor) { relay(descriptor, server_->port(), limit); }});
    Url url = cutter.url();
    url.scheme = "https";
    Request request = request_of("POST");
    request.target = "/echo";
    request.body = body;

    const auto answer = Client::make(url, client_options_)->blocking_send(request);

    ASSERT_FALSE(answer.has_value()) << limit;
    EXPECT_EQ(answer.error().code(), ErrorCode::kDisconnected) << limit << answer.error().message();
  }
  EXPECT_EQ(get("/hello").value().body, "hello");
}

}  // namespace
}  // namespace weft::http
