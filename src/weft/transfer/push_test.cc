// Pushes in all their forms against a receiver: without digests, with files, in other encodings, as
// parts, by several writers, and over connections that lose and spoil what they carry.

#include <algorithm>
#include <thread>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/safetensors_file.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Fault = CuttingRelay::Fault;

PushOptions cold() {
  PushOptions options;
  options.announce = Announce::kNever;
  options.session = "cold";
  options.first_wait = 5ms;
  return options;
}

TEST(ColdPush, SendsEveryByteOnceAndNoDigestAhead) {
  Bench bench;
  const auto next = bench.first();

  const auto report = blocking_push(bench.client(), next.views(), cold());

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->skipped_bytes, 0u) << "though it is what is served";
  EXPECT_EQ(report->payload_bytes[0], report->total_bytes);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(ColdPush, GoesOnAfterCuts) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 2);
  CuttingRelay relay(bench.port(), {5'000, 9'000'000, 700, 8'388'700});
  const auto client = client_of(relay.port());
  auto options = cold();
  options.retries = 20;

  const auto report = blocking_push(*client, next.views(), options);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_GT(report->resumed, 0u);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(ColdPush, TakesNothingOverFromAnUploadThatWasLeft) {
  Bench bench;
  const auto left = random_tensors(bench.model(), 3);
  const auto next = random_tensors(bench.model(), 4);
  auto options = cold();
  options.commit = false;
  ASSERT_TRUE(blocking_push(bench.client(), left.views(), options));

  const auto report = blocking_push(bench.client(), next.views(), cold());

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Push, AnswersThatAreLostAreAskedForAgain) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 5);
  CuttingRelay relay(bench.port(), {1, 20, 150, 300, 450, 600, 700, 800, 900, 1'000},
                     Fault::kCutAnswers);
  const auto client = client_of(relay.port());

  const auto report =
      blocking_push(*client, next.views(), {.label = "step-1", .retries = 20, .first_wait = 5ms});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.target().commits(), 1u);
}

TEST(Push, AFlippedBitIsSentAgainAndNeverServed) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 6);
  for (const bool announced : {true, false}) {
    CuttingRelay relay(bench.port(), {2'000'000, 3'000'000, 4'000'000}, Fault::kFlipRequests);
    const auto client = client_of(relay.port());
    PushOptions options;
    options.connections = 1;
    options.first_wait = 5ms;
    options.announce = announced ? Announce::kAlways : Announce::kNever;

    const auto report = blocking_push(*client, next.views(), options);

    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GT(report->resumed, 0u);
    EXPECT_EQ(bench.served(), next.bytes());
    ASSERT_TRUE(blocking_push(bench.client(), bench.first().views(), {}));
  }
}

TEST(Push, FilesGoWithTheTensors) {
  ReceiverOptions options;
  options.files = std::make_shared<const ModelFiles>(
      ModelFiles{{"config.json", R"({"a":1})"}, {"tokenizer.json", "old"}});
  Bench bench(small_model(), options);
  const auto next = random_tensors(bench.model(), 7);
  const auto source = MemorySource::create(next.views(), {{"tokenizer.json", "new"}}).value();

  const auto report = blocking_push(bench.client(), source, {});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.target().files().at("tokenizer.json"), "new");
  MemoryTarget pulled;
  ASSERT_TRUE(blocking_pull(bench.client(), report->id, pulled));
  EXPECT_EQ(pulled.files().at("config.json"), R"({"a":1})");
  EXPECT_EQ(pulled.files().at("tokenizer.json"), "new");
}

TEST(Push, WhatAReceiverServesCanBePulled) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 8);
  const std::string id = blocking_push(bench.client(), next.views(), {}).value().id;
  MemoryTarget pulled;

  const auto report = blocking_pull(
      bench.client(), blocking_resolve_version(bench.client(), "#main").value(), pulled);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->id, id);
  for (std::size_t i = 0; i < report->manifest.tensors.size(); ++i) {
    const auto& name = report->manifest.tensors[i].spec.name;
    EXPECT_TRUE(
        std::ranges::equal(std::as_const(*pulled.weights()).tensor(i), next.bytes().at(name)))
        << name;
  }
}

// `base` with a few values changed.
Tensors changed_a_little(Tensors base) {
  for (Bytes& data : base.data) {
    for (std::size_t at = 0; at + 4 <= data.size(); at += 1'000'000) data[at] ^= std::byte{2};
  }
  return base;
}

TEST(Push, WhatDiffersLittleFromTheBaseGoesAsWhatChanged) {
  Bench bench;
  const auto first = bench.first();
  const auto next = changed_a_little(first);
  const auto base = MemorySource::create(first.views()).value();
  for (const Announce announce : {Announce::kAlways, Announce::kNever}) {
    ASSERT_TRUE(blocking_push(bench.client(), first.views(), {}));
    PushOptions options;
    options.base = bench.current().id;
    options.base_source = &base;
    options.announce = announce;

    const auto report = blocking_push(bench.client(), next.views(), options);

    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GT(report->payload_bytes[3], 0u);
    EXPECT_LT(report->sent_bytes, 10'000u);
    EXPECT_EQ(bench.served(), next.bytes());
  }
}

TEST(Push, ABaseThatIsNotThereMeansInFull) {
  Bench bench;
  const auto first = bench.first();
  const auto next = changed_a_little(first);
  const auto base = MemorySource::create(first.views()).value();
  PushOptions options;
  options.base = "blake3:" + std::string(64, '0');
  options.base_source = &base;

  const auto report = blocking_push(bench.client(), next.views(), options);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->payload_bytes[3], 0u);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Push, APartTakesTheRestFromItsBase) {
  Bench bench;
  auto next = random_tensors(bench.model(), 9);
  const auto first = bench.first();
  const std::size_t norm = next.find("model.norm.weight");
  const std::vector<TensorView> part{{next.specs[norm], next.data[norm]}};
  PushOptions options;
  options.base = bench.current().id;
  options.partial = true;

  const auto report = blocking_push(bench.client(), part, options);

  ASSERT_TRUE(report) << report.error().message();
  auto expected = first.bytes();
  expected["model.norm.weight"] = next.data[norm];
  EXPECT_EQ(bench.served(), expected);
  EXPECT_EQ(report->total_bytes, next.data[norm].size());
}

TEST(Push, BlocksAreCompressedWhereThatIsShorter) {
  Bench bench;
  auto next = random_tensors(bench.model(), 10);
  Bytes& large = next.data[next.find("model.large.weight")];
  std::fill(large.begin(), large.begin() + kBlockBytes, std::byte{0});
  PushOptions options;
  options.zstd = true;

  const auto report = blocking_push(bench.client(), next.views(), options);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_GT(report->payload_bytes[1], 0u);
  EXPECT_LT(report->sent_bytes, report->total_bytes - kBlockBytes / 2);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Push, WritersShareOneUpload) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 11);
  std::vector<std::optional<Result<PushReport>>> reports(2);
  std::vector<std::thread> writers;
  for (unsigned writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      PushOptions options;
      options.session = "ranks";
      options.writer = writer;
      options.writers = 2;
      reports[writer] = blocking_push(*client_of(bench.port()), next.views(), options);
    });
  }
  for (std::thread& writer : writers) writer.join();

  for (const auto& report : reports) ASSERT_TRUE(*report) << report->error().message();
  EXPECT_EQ((*reports[0])->id, bench.current().id);
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.target().commits(), 1u);
}

// One of whose blocks cannot be read, from the second time on.
class FailingSource final : public TensorSource {
 public:
  explicit FailingSource(const Tensors& tensors) : tensors_(tensors) {}
  const std::vector<TensorSpec>& tensors() const override { return tensors_.specs; }
  const std::vector<OfferedFile>& files() const override { return none_; }
  bool is_costly() const override { return true; }
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override {
    if (offset_bytes > 0) return Error(ErrorCode::kCorrupt, "the disk is broken");
    return std::span<const std::byte>(tensors_.data[entry]).first(scratch.size());
  }

 private:
  const Tensors& tensors_;
  const std::vector<OfferedFile> none_;
};

TEST(Push, ASourceThatCannotBeReadEndsItWithItsError) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 12);
  for (const bool zstd : {false, true}) {
    PushOptions options;
    options.zstd = zstd;

    const auto report = blocking_push(bench.client(), FailingSource(next), options);

    EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(report.error().message(), HasSubstr("the disk is broken"));
    EXPECT_EQ(bench.state(), "idle") << "the upload is dropped";
  }
}

TEST(Push, AFolderIsReadBlockByBlock) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 13);
  std::vector<TestTensor> tensors;
  for (std::size_t i = 0; i < next.specs.size(); ++i) {
    tensors.push_back({next.specs[i], next.data[i]});
  }
  const TemporaryDir directory;
  blocking_write_safetensors(directory / "model.safetensors", tensors);
  const auto source = blocking_open_source(directory.path()).value();
  for (const Announce announce : {Announce::kAlways, Announce::kNever}) {
    PushOptions options;
    options.announce = announce;

    const auto report = blocking_push(bench.client(), *source, options);

    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(bench.served(), next.bytes());
  }
}

}  // namespace
}  // namespace weft
