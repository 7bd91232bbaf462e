// Pulls against a source that can be told to misbehave.

#include <algorithm>
#include <mutex>
#include <optional>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/checkpoint/checkpoint_files.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;
using ::testing::HasSubstr;
using Files = std::map<std::string, std::string>;

// A version as the wire has it.
struct Wire {
  std::string id, manifest, blocks, data;
  std::map<std::string, std::string> blobs;

  Wire(const Tensors& tensors, const Files& files) {
    Manifest content;
    const auto add = [&](std::span<const std::byte> bytes) {
      std::vector<Digest> values;
      for (std::uint64_t block = 0; block < block_count(bytes.size()); ++block) {
        const auto rest = bytes.subspan(block * kBlockBytes);
        values.push_back(block_digest(bytes.size(), block,
                                      rest.first(std::min<std::size_t>(rest.size(), kBlockBytes))));
        blocks.append(chars_of(values.back().bytes));
      }
      const Digest digest = merge_block_digests(values);
      blobs[digest_text(digest)] = chars_of(bytes);
      data.append(chars_of(bytes));
      return digest;
    };
    for (std::size_t i = 0; i < tensors.specs.size(); ++i) {
      content.tensors.push_back({tensors.specs[i], add(tensors.data[i])});
    }
    for (const auto& [name, text] : files) {
      content.files.push_back({name, text.size(), add(std::as_bytes(std::span(text)))});
    }
    manifest = manifest_json(content);
    id = manifest_id(content);
  }
  static std::string_view chars_of(std::span<const std::byte> bytes) {
    return {static_cast<const char*>(static_cast<const void*>(bytes.data())), bytes.size()};
  }
};

// Serves one version. `spoil` may change any answer.
class Origin {
 public:
  using Spoil = std::function<void(const http::Request&, http::Response&)>;

  explicit Origin(const Wire& wire, Spoil spoil = {}) : wire_(wire), spoil_(std::move(spoil)) {
    std::vector<http::Route> routes;
    for (const char* pattern : {"/weft/v1/versions", "/weft/v1/heads/{head}",
                                "/weft/v1/versions/{id}/manifest", "/weft/v1/versions/{id}/blocks",
                                "/weft/v1/versions/{id}/packs/{n}", "/weft/v1/blobs/{digest}"}) {
      http::Route route;
      route.method = "GET";
      route.pattern = pattern;
      route.handler = [this](const http::Request& request,
                             const std::shared_ptr<http::Exchange>& exchange) {
        exchange->respond(answer(request));
      };
      routes.push_back(std::move(route));
    }
    http::ServerOptions options;
    options.port = 0;
    server_ = http::Server::create(options, std::move(routes)).value();
    client_ = client_of(server_->port());
  }
  ~Origin() { server_->blocking_stop(std::chrono::seconds(5)); }

  std::uint16_t port() const { return server_->port(); }
  http::Client& client() { return *client_; }
  unsigned requests(std::string_view part) {
    const std::lock_guard lock(mutex_);
    return static_cast<unsigned>(std::ranges::count_if(
        paths_, [&](const std::string& path) { return path.find(part) != std::string::npos; }));
  }
  void move_head(const std::string& id) {
    const std::lock_guard lock(mutex_);
    head_ = id;
  }

 private:
  http::Response answer(const http::Request& request) {
    const std::lock_guard lock(mutex_);
    paths_.push_back(request.path);
    http::Response response = http::json_response("");
    if (const auto body = try_find(request.path)) {
      add_body(request, *body, response);
    } else if (request.path == "/weft/v1/versions") {
      response.body = fmt::format(
          R"({{"versions":[{{"id":"{}","labels":["step-1","best"]}},{{"id":"blake3:{}"}}]}})",
          wire_.id, wire_.id.substr(7, 20) + std::string(44, '0'));
    } else if (request.path == "/weft/v1/heads/main" && !head_.empty()) {
      const auto known = request.headers.try_get("If-None-Match");
      response.body = fmt::format(R"({{"name":"main","id":"{}","label":"l"}})", head_);
      if (known == '"' + head_ + '"') response = http::json_response("", 304);
    } else {
      response = http::error_response(Error(ErrorCode::kNotFound, "not here: " + request.path));
    }
    if (spoil_) spoil_(request, response);
    return response;
  }
  std::optional<std::string_view> try_find(const std::string& path) const {
    const std::string version = "/weft/v1/versions/" + wire_.id;
    if (path == version + "/manifest") return wire_.manifest;
    if (path == version + "/blocks") return wire_.blocks;
    if (path.starts_with(version + "/packs/")) {
      const auto n = std::stoull(path.substr(version.size() + 7));
      if (n * kPackBytes >= wire_.data.size()) return std::nullopt;
      return std::string_view(wire_.data).substr(n * kPackBytes, kPackBytes);
    }
    const auto blob = wire_.blobs.find(path.substr(path.rfind('/') + 1));
    if (blob == wire_.blobs.end()) return std::nullopt;
    return blob->second;
  }
  static void add_body(const http::Request& request, std::string_view body,
                       http::Response& response) {
    if (const auto range = request.headers.try_get("Range")) {
      const std::string text(range->substr(range->find('=') + 1));
      const std::size_t begin = std::stoull(text);
      body = body.substr(begin, std::stoull(text.substr(text.find('-') + 1)) + 1 - begin);
      response.status = 206;
    }
    response.body = body;
  }

  const Wire& wire_;
  const Spoil spoil_;
  std::mutex mutex_;
  std::vector<std::string> paths_;
  std::string head_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<http::Client> client_;
};

// Tensors sorted by name, one of them longer than a pack, and two files.
struct Model {
  Tensors tensors = random_tensors({{"a", DType::kBF16, {33}},
                                    {"b", DType::kF32, {0, 7}},
                                    {"c", DType::kU8, {kPackBytes + 3 * kBlockBytes / 2}},
                                    {"d", DType::kF32, {5, 5}}},
                                   1);
  Files files{{"config.json", R"({"a":1})"}, {"tokenizer.json", "{}"}};
  Wire wire{tensors, files};
};
// A relay that cuts is asked again soon.
PullOptions in_haste() {
  PullOptions options;
  options.first_wait = std::chrono::milliseconds(5);
  return options;
}

const Model& model() {
  static const Model model;
  return model;
}

void expect_is_model(const MemoryTarget& target) {
  const Model& expected = model();
  ASSERT_TRUE(target.weights());
  for (std::size_t i = 0; i < expected.tensors.specs.size(); ++i) {
    EXPECT_TRUE(
        std::ranges::equal(std::as_const(*target.weights()).tensor(i), expected.tensors.data[i]))
        << expected.tensors.specs[i].name;
  }
  EXPECT_EQ(target.files(), expected.files);
}

TEST(Pull, BringsAVersionIntoMemory) {
  Origin origin(model().wire);
  MemoryTarget target;
  std::uint64_t last = 0;
  PullOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t) { last = std::max(last, done); };

  const auto report = blocking_pull(origin.client(), model().wire.id, target, options);

  ASSERT_TRUE(report) << report.error().message();
  expect_is_model(target);
  EXPECT_EQ(report->fetched_bytes, model().wire.data.size());
  EXPECT_EQ(last, model().wire.data.size());
  EXPECT_EQ(origin.requests("/packs/"), 2u) << "whole packs, so that caches hold them";
}

TEST(Pull, CutAnywhereItGoesOnFromWhatIsMissing) {
  Origin origin(model().wire);
  CuttingRelay relay(
      origin.port(),
      {10, 700, 3'000, 400, 1'000'000, 30'000'000, 99, 60'000'000, 8'388'700, 8'388'700},
      CuttingRelay::Fault::kCutAnswers);
  MemoryTarget target;

  const auto report = blocking_pull(*client_of(relay.port()), model().wire.id, target, in_haste());

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_GT(report->resumed, 0u);
  expect_is_model(target);
}

TEST(Pull, GivesUpOnASourceThatIsNotThere) {
  std::uint16_t port = 0;
  {
    Origin origin(model().wire);
    port = origin.port();
  }
  MemoryTarget target;
  PullOptions options = in_haste();
  options.retries = 1;
  EXPECT_EQ(blocking_pull(*client_of(port), model().wire.id, target, options).error().code(),
            ErrorCode::kDisconnected);
}

TEST(Pull, AWrongBlockIsFetchedAgainUnderAnotherName) {
  Origin origin(model().wire, [](const http::Request& request, http::Response& response) {
    if (!request.path.ends_with("/packs/0")) return;
    for (const std::size_t at : {3ul, 3 * kBlockBytes, kPackBytes - 1}) response.body[at] ^= 1;
  });
  MemoryTarget target;

  const auto report = blocking_pull(origin.client(), model().wire.id, target);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->corrupt_blocks, 3u);
  EXPECT_EQ(origin.requests("/blobs/"), 3u);
  expect_is_model(target);
}

TEST(Pull, BytesThatStayWrongAreNeverTaken) {
  Origin origin(model().wire, [](const http::Request& request, http::Response& response) {
    const bool is_data = request.path.find("/packs/0") != std::string::npos ||
                         request.path.find("/blobs/") != std::string::npos;
    if (is_data && !response.body.empty()) response.body.back() ^= 1;
  });
  MemoryTarget target;

  const auto report = blocking_pull(origin.client(), model().wire.id, target);

  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(report.error().message(), HasSubstr("c: block 7"));
}

TEST(Pull, AMirrorHelpsWhereTheFirstSourceCannot) {
  const Wire other(random_tensors({{"x", DType::kU8, {9}}}, 1), {});
  Origin without(other);
  Origin with(model().wire);
  MemoryTarget target;
  PullOptions options;
  options.mirrors = {&with.client()};

  ASSERT_TRUE(blocking_pull(without.client(), model().wire.id, target, options));
  expect_is_model(target);
  MemoryTarget alone;
  EXPECT_EQ(blocking_pull(without.client(), model().wire.id, alone).error().code(),
            ErrorCode::kNotFound);
}

TEST(Pull, ASourceThatKnowsNoRangesWillDo) {
  Origin origin(model().wire, [](const http::Request& request, http::Response& response) {
    if (!request.headers.try_get("Range")) return;
    const bool first = request.path.ends_with("/packs/0");
    response.body = model().wire.data.substr(first ? 0 : kPackBytes, kPackBytes);
    response.status = 200;
  });
  auto base = model().tensors;
  base.data[2][20 * 1'000'000] ^= std::byte{1};
  const auto views = base.views();
  const auto source = MemorySource::create(views).value();
  MemoryTarget target;
  PullOptions options;
  options.base = &source;

  const auto report = blocking_pull(origin.client(), model().wire.id, target, options);

  ASSERT_TRUE(report) << report.error().message();
  expect_is_model(target);
}

TEST(Pull, WhatTheBaseHasIsNotFetched) {
  Origin origin(model().wire);
  auto base = model().tensors;
  base.data[2][1] ^= std::byte{1};
  const auto views = base.views();
  const auto source = MemorySource::create(views).value();
  const auto digests = blocking_hash_source(source, 1).value();
  for (const VersionDigests* known : {static_cast<const VersionDigests*>(nullptr), &digests}) {
    MemoryTarget target;
    PullOptions options;
    options.base = &source;
    options.base_digests = known;

    const auto report = blocking_pull(origin.client(), model().wire.id, target, options);

    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report->fetched_bytes, kBlockBytes + 9) << "one block, and the files";
    expect_is_model(target);
  }
}

TEST(Pull, AnotherModelDoesNotFitIntoTheWeightsGiven) {
  Origin origin(model().wire);
  auto layout = WeightLayout::make({{"a", DType::kBF16, {34}}}).value();
  const auto weights =
      WeightSet::blocking_allocate(std::make_shared<const WeightLayout>(std::move(layout)));
  MemoryTarget target(weights.value());

  EXPECT_EQ(blocking_pull(origin.client(), model().wire.id, target).error().code(),
            ErrorCode::kConflict);
}

void expect_is_model(const std::filesystem::path& folder) {
  const auto checkpoint = CheckpointFiles::blocking_open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const Model& expected = model();
  ASSERT_EQ(checkpoint->tensors().size(), expected.tensors.specs.size());
  for (std::size_t i = 0; i < expected.tensors.specs.size(); ++i) {
    EXPECT_EQ(checkpoint->tensors()[i].spec, expected.tensors.specs[i]);
    Bytes bytes(expected.tensors.data[i].size());
    ASSERT_TRUE(checkpoint->blocking_read(checkpoint->tensors()[i], bytes));
    EXPECT_TRUE(bytes == expected.tensors.data[i]) << expected.tensors.specs[i].name;
  }
  for (const auto& [name, text] : expected.files) {
    EXPECT_EQ(blocking_read_file(folder / name).value(), text);
  }
}

std::size_t count_entries(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(PullIntoAFolder, WritesWhatACheckpointIsAndNothingBeside) {
  const TemporaryDir directory;
  Origin origin(model().wire);
  FolderTarget target(directory / "model/");

  const auto report = blocking_pull(origin.client(), model().wire.id, target);

  ASSERT_TRUE(report) << report.error().message();
  expect_is_model(directory / "model");
  EXPECT_TRUE(std::filesystem::exists(directory / "model/model.safetensors"));
  EXPECT_EQ(count_entries(directory.path()), 1u);
  EXPECT_EQ(count_entries(directory / "model"), 3u);
}

TEST(PullIntoAFolder, LargeWeightsAreCutIntoShards) {
  const TemporaryDir directory;
  Origin origin(model().wire);
  FolderTarget target(directory / "model", 1'000'000);

  ASSERT_TRUE(blocking_pull(origin.client(), model().wire.id, target));

  expect_is_model(directory / "model");
  EXPECT_TRUE(std::filesystem::exists(directory / "model/model-00002-of-00003.safetensors"));
}

TEST(PullIntoAFolder, GoesOnWithWhatACutPullLeft) {
  const TemporaryDir directory;
  Origin origin(model().wire);
  {
    CuttingRelay relay(origin.port(), std::vector<std::size_t>(10, 30'000'000),
                       CuttingRelay::Fault::kCutAnswers);
    FolderTarget target(directory / "model");
    PullOptions options;
    options.retries = 0;
    options.connections = 1;
    EXPECT_FALSE(blocking_pull(*client_of(relay.port()), model().wire.id, target, options));
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "model"));
  FolderTarget target(directory / "model");

  const auto report = blocking_pull(origin.client(), model().wire.id, target);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_GE(report->held_bytes, 2 * kBlockBytes);
  expect_is_model(directory / "model");
  EXPECT_EQ(count_entries(directory.path()), 1u);
}

TEST(PullIntoAFolder, DoesNotTouchAFolderThatIsThere) {
  const TemporaryDir directory;
  ASSERT_TRUE(blocking_write_file(directory / "mine", "x"));
  Origin origin(model().wire);
  FolderTarget target(directory.path());

  EXPECT_EQ(blocking_pull(origin.client(), model().wire.id, target).error().code(),
            ErrorCode::kConflict);
  EXPECT_EQ(count_entries(directory.path()), 1u);
}

TEST(PullIntoAFolder, RefusesFilesThatNoModelHas) {
  for (const char* name : {"run.sh", "sub/config.json", "../config.json", "model.safetensors"}) {
    const TemporaryDir directory;
    const Wire wire(random_tensors({{"x", DType::kU8, {9}}}, 1), {{name, "x"}});
    Origin origin(wire);
    FolderTarget target(directory / "model");
    EXPECT_FALSE(blocking_pull(origin.client(), wire.id, target)) << name;
    EXPECT_EQ(count_entries(directory.path()), 0u);
  }
}

TEST(ResolveVersion, TakesIdsHeadsLabelsAndBeginnings) {
  const std::string& id = model().wire.id;
  Origin origin(model().wire);
  origin.move_head(id);
  const auto resolve = [&](std::string_view text) {
    return blocking_resolve_version(origin.client(), text);
  };
  EXPECT_EQ(resolve(id).value(), id);
  EXPECT_EQ(resolve("#main").value(), id);
  EXPECT_EQ(resolve("best").value(), id);
  EXPECT_EQ(resolve(id.substr(7, 30)).value(), id);
  EXPECT_EQ(resolve(id.substr(0, 40)).value(), id);
  EXPECT_EQ(resolve("#canary").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(resolve(id.substr(7, 7)).error().code(), ErrorCode::kNotFound) << "too short";
  EXPECT_EQ(resolve(id.substr(7, 8)).error().code(), ErrorCode::kInvalidArgument) << "of two";
  EXPECT_EQ(resolve("step-2").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace weft
