// Pulls by the deltas of a store, over HTTP: chains, and what is wrong with them.

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/http/client.h"
#include "weft/http/server.h"
#include "weft/store/store_fixture.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/delta_puller.h"
#include "weft/transfer/pull_routes.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/version_blocks.h"

namespace weft::store_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A store with a chain of versions behind a server; each is made from the one before.
class DeltaPulls : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = Store::blocking_open(folder_).value();
    Model model = random_model(1);
    model.files = {{"config.json", Bytes(50)}};
    for (unsigned i = 0; i < 4; ++i) {
      model.data[0][100 * i] ^= std::byte{1};
      model.files.at("config.json")[i] = std::byte{'x'};
      CommitRequest request = as(std::to_string(i), "main");
      if (i > 0) request.parent = ids_.back();
      ids_.push_back(push(*store_, model, request).value().version.id);
      models_.push_back(model);
    }
    store_->blocking_finish_deltas();
    http::ServerOptions options;
    options.port = 0;
    server_ = http::Server::create(options, pull_routes(store_->versions())).value();
    client_ = http::Client::make(
        http::Url::parse("http://127.0.0.1:" + std::to_string(server_->port())).value());
  }

  // What somebody has, read by way of another store.
  std::unique_ptr<VersionBlocks> base(std::size_t version) {
    return open_blocks(store_->versions(), ids_[version]).value();
  }

  // Into memory.
  DeltaPull pull_from(const VersionBlocks& base, std::size_t version) {
    target_ = std::make_unique<MemoryTarget>();
    DeltaPullOptions options;
    options.first_wait = std::chrono::milliseconds(1);
    return blocking_pull_deltas(*client_, ids_[version], base, *target_, options).value();
  }

  void expect_is(const PullReport& report, std::size_t version) {
    const auto expected = models_[version].by_name();
    for (std::size_t i = 0; i < entry_count(report.manifest); ++i) {
      Bytes scratch(static_cast<std::size_t>(entry_size_bytes(report.manifest, i)));
      const auto bytes = target_->blocking_read(i, 0, scratch).value();
      EXPECT_TRUE(std::ranges::equal(bytes, expected.at(entry_name(report.manifest, i))));
    }
  }

  // The delta's file on disk.
  fs::path file_of(std::size_t version, std::string_view extension) {
    const std::string hex = ids_[version].substr(ids_[version].find(':') + 1);
    for (const auto& each : fs::directory_iterator(folder_ / "deltas")) {
      const fs::path path = each.path();
      if (path.filename().string().starts_with(hex) && path.extension() == extension) return path;
    }
    return {};
  }
  void flip(const fs::path& path) {
    std::string bytes = blocking_read_file(path).value();
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
  }

  const TemporaryDir dir_;
  const fs::path folder_ = dir_ / "s";
  std::unique_ptr<Store> store_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<http::Client> client_;
  std::vector<std::string> ids_;
  std::vector<Model> models_;
  std::unique_ptr<MemoryTarget> target_;
};

TEST_F(DeltaPulls, GoThroughAChain) {
  for (std::size_t from = 0; from < 3; ++from) {
    const DeltaPull pull = pull_from(*base(from), 3);
    ASSERT_TRUE(pull.report) << pull.why_not;
    EXPECT_EQ(pull.deltas, 3 - from);
    EXPECT_EQ(pull.report->id, ids_[3]);
    expect_is(*pull.report, 3);
    EXPECT_LT(pull.report->fetched_bytes, 2000u);
    EXPECT_LT(pull.report->held_bytes, pull.report->total_bytes);
    EXPECT_GT(pull.report->held_bytes, 0u);
  }
}

TEST_F(DeltaPulls, AreNotThereBackwardsNorForWhatIsAtHand) {
  for (const auto& [from, to] : {std::pair(3u, 1u), std::pair(2u, 2u)}) {
    const DeltaPull pull = pull_from(*base(from), to);
    EXPECT_FALSE(pull.report);
    EXPECT_EQ(pull.why_not, "");
  }
}

TEST_F(DeltaPulls, AChainWithADeletedMiddleIsNoWay) {
  const auto from = base(0);
  ASSERT_TRUE(store_->versions().delete_version(ids_[2]));
  ASSERT_TRUE(store_->blocking_collect());
  const DeltaPull pull = pull_from(*from, 3);
  EXPECT_FALSE(pull.report);
  EXPECT_EQ(pull.why_not, "");
}

TEST_F(DeltaPulls, ABrokenPackIsSaidAndAPullInFullEndsWell) {
  flip(file_of(2, ".pack"));
  const auto from = base(0);
  DeltaPull pull = pull_from(*from, 3);
  EXPECT_FALSE(pull.report);
  EXPECT_THAT(pull.why_not, AllOf(HasSubstr("delta of version " + ids_[2]), HasSubstr("block 0"),
                                  HasSubstr("another digest than the index has")));
  target_ = std::make_unique<MemoryTarget>();
  const auto report = blocking_pull(*client_, ids_[3], *target_);
  ASSERT_TRUE(report) << report.error().message();
  expect_is(*report, 3);
}

TEST_F(DeltaPulls, APackThatIsGoneIsSaid) {
  fs::remove(file_of(3, ".pack"));
  EXPECT_THAT(pull_from(*base(1), 3).why_not, HasSubstr("delta of version " + ids_[3]));
}

// It says that it is a version which it is not.
class Pretender final : public VersionBlocks {
 public:
  Pretender(const VersionBlocks& name, const VersionBlocks& bytes) : name_(name), bytes_(bytes) {}
  const VersionContent& content() const override { return name_.content(); }
  Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                   std::span<std::byte> scratch) const override {
    return bytes_.blocking_read(place, scratch);
  }

 private:
  const VersionBlocks& name_;
  const VersionBlocks& bytes_;
};

TEST_F(DeltaPulls, ABaseThatIsNotWhatItSaysIsFound) {
  const auto zero = base(0), one = base(1);
  const DeltaPull pull = pull_from(Pretender(*one, *zero), 2);
  EXPECT_FALSE(pull.report);
  EXPECT_THAT(pull.why_not,
              AllOf(HasSubstr(ids_[1]), HasSubstr("its bytes are not the version's")));
}

TEST_F(DeltaPulls, WhatIsWrongWithTheTargetIsAnErrorOfThePull) {
  std::ofstream(dir_ / "mine") << "x";
  FolderTarget target(dir_.path());
  const auto from = base(2);
  const auto pull = blocking_pull_deltas(*client_, ids_[3], *from, target);
  ASSERT_FALSE(pull);
  EXPECT_EQ(pull.error().code(), ErrorCode::kConflict);
}

}  // namespace
}  // namespace weft::store_test
