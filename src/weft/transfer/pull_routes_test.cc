// The pull routes over a source in memory: what is answered to whom, and what cuts an answer off.

#include "weft/transfer/pull_routes.h"

#include <condition_variable>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/format/safetensors.h"
#include "weft/http/client.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/transfer_fixture.h"
#include "weft/transfer/version_layout.h"

namespace weft {
namespace {

using namespace transfer_test;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {static_cast<const char*>(static_cast<const void*>(bytes.data())), bytes.size()};
}

// A version whose entries lie in memory, the last of them in a file where one is given.
class MemoryVersion final : public VersionData, public std::enable_shared_from_this<MemoryVersion> {
 public:
  explicit MemoryVersion(const NamedBytes& tensors, const NamedBytes& files = {}) {
    for (const auto& [name, bytes] : tensors) {
      add(bytes);
      content_.manifest.tensors.push_back(
          {{name, DType::kU8, {bytes.size()}}, digest_of(entries_.back())});
    }
    for (const auto& [name, bytes] : files) {
      add(bytes);
      content_.manifest.files.push_back({name, bytes.size(), digest_of(entries_.back())});
    }
    content_.manifest_json = manifest_json(content_.manifest);
    content_.id = manifest_id(content_.manifest);
  }

  const VersionContent& content() const override { return content_; }
  std::string data() const {
    std::string all;
    for (const Bytes& entry : entries_) all += text_of(entry);
    return all;
  }
  void move_to_file(const std::filesystem::path& path) {
    ASSERT_TRUE(blocking_write_file(path, text_of(entries_.back())));
    file_ = std::make_shared<File>(*File::open(path));
  }

  Result<void> append(std::size_t entry, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<http::BodyPart>& parts) const override {
    if (file_ != nullptr && entry + 1 == entries_.size()) {
      parts.push_back({{}, file_, offset_bytes, size_bytes});
    } else {
      parts.push_back({std::span(entries_.at(entry)).subspan(offset_bytes, size_bytes)});
    }
    return {};
  }
  std::shared_ptr<void> on_revoke(std::function<void()> revoked) const override {
    const std::lock_guard lock(mutex_);
    revoked_ = std::move(revoked);
    return std::shared_ptr<void>(nullptr, [this](void*) { take_revoked(); });
  }
  void revoke() { take_revoked()(); }

 private:
  std::function<void()> take_revoked() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(revoked_, nullptr);
  }
  void add(const Bytes& bytes) {
    entries_.push_back(bytes);
    auto& values = content_.blocks.emplace_back();
    for (std::uint64_t block = 0; block < block_count(bytes.size()); ++block) {
      const auto rest = std::span(bytes).subspan(block * kBlockBytes);
      values.push_back(block_digest(bytes.size(), block,
                                    rest.first(std::min<std::size_t>(rest.size(), kBlockBytes))));
    }
  }

  VersionContent content_;
  std::vector<Bytes> entries_;
  std::shared_ptr<const File> file_;
  mutable std::mutex mutex_;
  mutable std::function<void()> revoked_;
};

Error absent(const std::string& what) {
  return Error(ErrorCode::kNotFound, fmt::format("there is no {}", what));
}

class MemorySource final : public VersionSource {
 public:
  void add(std::shared_ptr<MemoryVersion> version) {
    const std::string id = version->content().id;
    records_[id].id = id;
    records_[id].state = "stored";
    versions_[id] = std::move(version);
  }
  void convert(const std::string& id) { records_.at(id).converted = true; }

  std::vector<VersionRecord> versions() override {
    const std::lock_guard lock(mutex_);
    std::vector<VersionRecord> all;
    for (const auto& [id, record] : records_) all.push_back(record);
    return all;
  }
  Result<VersionRecord> version(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(id)) return absent(id);
    return records_.at(id);
  }
  std::vector<Head> heads() override {
    const std::lock_guard lock(mutex_);
    std::vector<Head> all;
    for (const auto& [name, id] : heads_) all.push_back({name, id});
    return all;
  }
  std::shared_ptr<void> on_head_moved(std::function<void()> moved) override {
    const std::lock_guard lock(mutex_);
    const auto it = moved_.insert(moved_.end(), std::move(moved));
    changed_.notify_all();
    return std::shared_ptr<void>(nullptr, [this, it](void*) {
      const std::lock_guard unlock(mutex_);
      moved_.erase(it);
      changed_.notify_all();
    });
  }
  void blocking_wait_for_subscriptions(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return moved_.size() == count; });
  }
  void move_head(const std::string&, const std::string& name, const std::string& id,
                 std::optional<std::string> expected, Done<CommitReport> done) override {
    done(try_move(name, id, expected));
  }
  Result<void> delete_head(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    if (heads_.erase(name) == 0) return absent(name);
    return {};
  }
  Result<void> set_label(const std::string& label, const std::string& id) override {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(id)) return absent(id);
    records_.at(id).labels.push_back(label);
    return {};
  }
  Result<void> set_pin(const std::string& id, bool pinned) override {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(id)) return absent(id);
    records_.at(id).pinned = pinned;
    return {};
  }
  Result<void> delete_version(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    if (records_.erase(id) == 0) return absent(id);
    return {};
  }
  Result<std::shared_ptr<const VersionData>> open(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(id)) return absent(id);
    if (records_.at(id).converted) return Error(ErrorCode::kConflict, "it was converted");
    return std::shared_ptr<const VersionData>(versions_.at(id));
  }
  Result<std::shared_ptr<const VersionContent>> content(const std::string& id) override {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(id)) return absent(id);
    return std::shared_ptr<const VersionContent>(versions_.at(id), &versions_.at(id)->content());
  }
  Result<Blob> find_blob(const Digest& digest) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, version] : versions_) {
      const Manifest& manifest = version->content().manifest;
      for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
        if (manifest.tensors[i].digest == digest) return Blob{version, i};
      }
    }
    return absent(digest_text(digest));
  }

 private:
  Result<CommitReport> try_move(const std::string& name, const std::string& id,
                                const std::optional<std::string>& expected) {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(id)) return absent(id);
    const std::string current = heads_.contains(name) ? heads_.at(name) : "";
    if (expected && *expected != current) return Error(ErrorCode::kPreconditionFailed, "it moved");
    heads_[name] = id;
    for (const auto& moved : moved_) moved();
    return CommitReport{{id, "", false}, 1, 1, 0};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<MemoryVersion>> versions_;
  std::map<std::string, VersionRecord> records_;
  std::map<std::string, std::string> heads_;
  std::list<std::function<void()>> moved_;
};

// A source with two versions behind a server.
class PullRoutes : public ::testing::Test {
 protected:
  explicit PullRoutes(PullLimits limits = {}) {
    source_.add(first_);
    source_.add(second_);
    http::ServerOptions options;
    options.port = 0;
    server_ = *http::Server::create(options, pull_routes(source_, limits));
    client_ = http::Client::make(*http::Url::parse(fmt::format("http://127.0.0.1:{}", port())));
  }
  std::uint16_t port() const { return server_->port(); }
  http::Response call(std::string method, std::string target, http::Headers headers = {},
                      std::string body = "") {
    http::Request request;
    request.method = std::move(method);
    request.target = "/weft/v1" + std::move(target);
    request.headers = std::move(headers);
    request.body = std::move(body);
    auto response = client_->blocking_send(request);
    EXPECT_TRUE(response) << response.error().message();
    return response ? *std::move(response) : http::Response();
  }
  http::Response get(std::string target, http::Headers headers = {}) {
    return call("GET", std::move(target), std::move(headers));
  }
  int put_head(const std::string& id, http::Headers headers = {}) {
    return call("PUT", "/heads/main", std::move(headers), fmt::format(R"({{"id":"{}"}})", id))
        .status;
  }
  std::string quoted(const std::string& id) { return "\"" + id + "\""; }

  // The same for all tests, since it takes a while to hash.
  static const std::shared_ptr<MemoryVersion>& longer_than_a_pack() {
    static const auto version =
        std::make_shared<MemoryVersion>(NamedBytes{{"a", Bytes(kPackBytes + 100, std::byte{7})}});
    return version;
  }
  static Bytes bytes_of(std::size_t size, unsigned seed) {
    return random_tensors({{"t", DType::kU8, {size}}}, seed).data.front();
  }

  TemporaryDir directory_;
  MemorySource source_;
  std::shared_ptr<MemoryVersion> first_ = std::make_shared<MemoryVersion>(
      NamedBytes{{"a", bytes_of(1000, 1)}, {"b", {}}, {"c", bytes_of(kBlockBytes + 5, 2)}},
      NamedBytes{{"config.json", bytes_of(77, 3)}});
  const std::shared_ptr<MemoryVersion> second_ = longer_than_a_pack();
  const std::string id_ = first_->content().id;
  const std::string path_ = "/versions/" + id_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<http::Client> client_;
};

TEST_F(PullRoutes, TheManifestComesByteForByteAndMayBeKeptForever) {
  const auto answer = get(path_ + "/manifest");

  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, first_->content().manifest_json);
  EXPECT_EQ(answer.headers.try_get("ETag"), quoted(id_));
  EXPECT_EQ(answer.headers.try_get("Cache-Control"),
            "public, max-age=31536000, immutable, no-transform");
  EXPECT_EQ(get(path_ + "/manifest", {{"If-None-Match", quoted(id_)}}).status, 304);
}

TEST_F(PullRoutes, ThePackOfASmallVersionIsAllItsEntriesInARow) {
  const auto answer = get(path_ + "/packs/0");

  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, first_->data());
  EXPECT_EQ(get(path_ + "/packs/1").status, 404);
  EXPECT_EQ(get(path_ + "/packs/-1").status, 404);
  EXPECT_EQ(get(path_ + "/packs/0x0").status, 404);
}

TEST_F(PullRoutes, PacksAreCutAt64MiB) {
  const std::string path = "/versions/" + second_->content().id + "/packs/";
  const auto head = call("HEAD", path + "0");
  const auto last = get(path + "1");

  EXPECT_EQ(head.headers.try_get("Content-Length"), std::to_string(kPackBytes));
  EXPECT_EQ(last.body, second_->data().substr(kPackBytes));
}

TEST_F(PullRoutes, ARangeMayBeginAndEndInsideAnyEntry) {
  first_->move_to_file(directory_ / "config.json");
  const std::string data = first_->data();
  for (const std::size_t begin : {0ul, 999ul, 1000ul, data.size() - 78, data.size() - 1}) {
    for (const std::size_t end : {begin + 1, std::min(begin + 1500, data.size()), data.size()}) {
      if (end > data.size()) continue;
      const auto range = fmt::format("bytes={}-{}", begin, end - 1);

      const auto answer = get(path_ + "/packs/0", {{"Range", range}});

      EXPECT_EQ(answer.status, 206) << range;
      EXPECT_TRUE(answer.body == data.substr(begin, end - begin)) << range;
    }
  }
  EXPECT_EQ(get(path_ + "/packs/0", {{"Range", "bytes=99999999-"}}).status, 416);
}

TEST_F(PullRoutes, TheSafetensorsFileIsOneAtEveryRange) {
  const auto whole = get(path_ + "/model.safetensors");
  ASSERT_EQ(whole.status, 200);
  const auto prefix = std::as_bytes(std::span(whole.body)).first<kSafetensorsPrefixBytes>();
  const std::uint64_t header_bytes = *parse_safetensors_prefix(prefix);
  const std::size_t data_at = kSafetensorsPrefixBytes + header_bytes;
  const auto header =
      parse_safetensors_header(std::string_view(whole.body).substr(8, header_bytes));
  ASSERT_TRUE(header) << header.error().message();

  EXPECT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(whole.body.size(), data_at + header->data_bytes);
  EXPECT_TRUE(std::string_view(whole.body).substr(data_at) ==
              first_->data().substr(0, header->data_bytes));
  for (const std::size_t begin : {std::size_t{0}, data_at - 1, data_at, data_at + 1}) {
    const auto part = get(path_ + "/model.safetensors",
                          {{"Range", fmt::format("bytes={}-{}", begin, data_at + 1)}});
    EXPECT_EQ(part.body, whole.body.substr(begin, data_at + 2 - begin));
  }
}

TEST_F(PullRoutes, BlocksMergeIntoTheDigestsOfTheManifest) {
  const auto answer = get(path_ + "/blocks");

  ASSERT_EQ(answer.body.size(), 4 * sizeof(Digest));  // a, c in two, config.json
  std::vector<Digest> values(4);
  std::copy_n(std::as_bytes(std::span(answer.body)).begin(), answer.body.size(),
              std::as_writable_bytes(std::span(values)).begin());
  EXPECT_EQ(merge_block_digests(std::span(values).subspan(1, 2)),
            first_->content().manifest.tensors[2].digest);
}

TEST_F(PullRoutes, ABlobIsFoundByItsDigest) {
  const std::string path = "/blobs/" + digest_text(first_->content().manifest.tensors[2].digest);

  EXPECT_TRUE(get(path).body == first_->data().substr(1000, kBlockBytes + 5));
  EXPECT_EQ(get(path + "/blocks").body.size(), 2 * sizeof(Digest));
  EXPECT_EQ(get("/blobs/blake3:00").status, 400);
  EXPECT_EQ(get("/blobs/blake3:" + std::string(64, '0')).status, 404);
}

TEST_F(PullRoutes, AConvertedVersionHasAManifestAndNoBytes) {
  source_.convert(id_);

  EXPECT_EQ(get(path_ + "/manifest").status, 200);
  for (const std::string name : {"/packs/0", "/blocks", "/model.safetensors"}) {
    const auto answer = get(path_ + name);
    EXPECT_EQ(answer.status, 404) << name;
    EXPECT_NE(answer.body.find("converted"), std::string::npos) << name;
    EXPECT_EQ(answer.headers.try_get("Cache-Control"), "no-store") << name;
  }
}

TEST_F(PullRoutes, WhoReadsWhatIsOverwrittenIsCutOff) {
  http::Request request;
  request.method = "GET";
  request.target = "/weft/v1/versions/" + second_->content().id + "/packs/0";
  bool revoked = false;

  const auto answer = client_->blocking_send_streaming(request, [&](std::string_view) {
    if (!std::exchange(revoked, true)) second_->revoke();
    return true;
  });

  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), ErrorCode::kDisconnected);
}

TEST_F(PullRoutes, AHeadMovesForWhoKnowsItAndOnlyForThem) {
  const std::string second = second_->content().id;
  EXPECT_EQ(get("/heads/main").status, 404);
  EXPECT_EQ(put_head(id_, {{"If-Match", quoted(second)}}), 412);
  EXPECT_EQ(put_head(id_, {{"If-Match", "*"}}), 412);
  EXPECT_EQ(put_head(id_, {{"If-None-Match", "*"}}), 200);
  EXPECT_EQ(put_head(second, {{"If-None-Match", "*"}}), 412);
  EXPECT_EQ(put_head(second, {{"If-Match", quoted(second)}}), 412);
  EXPECT_EQ(put_head(second, {{"If-Match", quoted(id_)}}), 200);
  EXPECT_EQ(put_head(id_), 200);
  EXPECT_EQ(put_head("blake3:none"), 404);

  const auto lost = call("PUT", "/heads/main", {{"If-Match", quoted(second)}},
                         fmt::format(R"({{"id":"{}"}})", second));
  EXPECT_EQ(lost.status, 412);
  EXPECT_EQ(member(lost.body, "current"), id_);
}

TEST_F(PullRoutes, TheSameMoveAgainIsFine) {
  const std::string second = second_->content().id;
  EXPECT_EQ(put_head(id_), 200);
  EXPECT_EQ(put_head(second, {{"If-Match", quoted(id_)}}), 200);
  EXPECT_EQ(put_head(second, {{"If-Match", quoted(id_)}}), 200);
}

TEST_F(PullRoutes, HeadsAreNeverKeptByACache) {
  put_head(id_);
  for (const auto& target : std::vector<std::string>{"/heads", "/heads/main", "/versions", path_}) {
    EXPECT_EQ(get(target).headers.try_get("Cache-Control"), "no-store") << target;
  }
  EXPECT_EQ(get("/heads/main").headers.try_get("ETag"), quoted(id_));
}

TEST_F(PullRoutes, RecordsAreChangedByTheirOwnCalls) {
  EXPECT_EQ(call("PUT", "/labels/step%201", {}, fmt::format(R"({{"id":"{}"}})", id_)).status, 200);
  EXPECT_EQ(call("PUT", path_ + "/pin").status, 200);
  EXPECT_TRUE(source_.version(id_)->pinned);
  EXPECT_EQ(source_.version(id_)->labels, std::vector<std::string>{"step 1"});
  EXPECT_EQ(call("DELETE", path_ + "/pin").status, 200);
  EXPECT_FALSE(source_.version(id_)->pinned);
  EXPECT_EQ(call("DELETE", path_).status, 204);
  EXPECT_EQ(get(path_).status, 404);
  EXPECT_EQ(call("DELETE", path_).status, 404);
}

TEST_F(PullRoutes, APollAnswersWhenTheHeadMoves) {
  put_head(id_);
  auto poll = std::async(std::launch::async, [&] {
    return get("/heads/main?wait=300", {{"If-None-Match", quoted(id_)}});
  });
  source_.blocking_wait_for_subscriptions(1);

  put_head(second_->content().id);

  const auto answer = poll.get();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(member(answer.body, "id"), second_->content().id);
  source_.blocking_wait_for_subscriptions(0);
}

TEST_F(PullRoutes, APollEndsWhenItsTimeIsUp) {
  put_head(id_);

  const auto answer = get("/heads/main?wait=1", {{"If-None-Match", quoted(id_)}});

  EXPECT_EQ(answer.status, 304);
  EXPECT_EQ(answer.headers.try_get("ETag"), quoted(id_));
  EXPECT_EQ(get("/heads/main?wait=301").status, 400);
  EXPECT_EQ(get("/heads/main?wait=x").status, 400);
}

TEST_F(PullRoutes, APollEndsWithItsClient) {
  put_head(id_);
  const std::string request = fmt::format(
      "GET /weft/v1/heads/main?wait=300 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {}\r\n\r\n",
      quoted(id_));
  RawConnection connection(port());
  ASSERT_TRUE(connection.send(request));
  source_.blocking_wait_for_subscriptions(1);

  connection.cut();

  source_.blocking_wait_for_subscriptions(0);
}

TEST_F(PullRoutes, AServerThatStopsDoesNotWaitForPolls) {
  put_head(id_);
  auto poll = std::async(std::launch::async, [&] {
    http::Request request;
    request.method = "GET";
    request.target = "/weft/v1/heads/main?wait=300";
    request.headers = {{"If-None-Match", quoted(id_)}};
    return client_->blocking_send(request);
  });
  source_.blocking_wait_for_subscriptions(1);

  server_->blocking_stop(std::chrono::minutes(5));  // or the test runs out of time

  EXPECT_FALSE(poll.get());
  source_.blocking_wait_for_subscriptions(0);
}

class FewPolls : public PullRoutes {
 protected:
  FewPolls() : PullRoutes(PullLimits{.max_polls = 1}) {}
};

TEST_F(FewPolls, OneMoreIsToldToComeBack) {
  put_head(id_);
  const http::Headers known = {{"If-None-Match", quoted(id_)}};
  auto poll = std::async(std::launch::async, [&] { return get("/heads/main?wait=300", known); });
  source_.blocking_wait_for_subscriptions(1);

  const auto refused = get("/heads/main?wait=300", known);

  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.try_get("Retry-After"));
  put_head(second_->content().id);
  EXPECT_EQ(poll.get().status, 200);
}

}  // namespace
}  // namespace weft
