// A pull into an upload: what reaches the host, block by block, with a host that does what the test
// says, and with a receiver.

#include "weft/transfer/host_target.h"

#include <algorithm>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "weft/format/manifest.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;

// Takes blocks that have the announced digest.
class KeepingHost final : public UploadHost {
 public:
  void open_upload(const std::string& owner, UploadOffer opened,
                   Done<UploadProgress> done) override {
    opened_by = owner;
    offer = std::move(opened);
    UploadProgress progress;
    progress.epoch = 7;
    progress.missing = missing;
    done(std::move(progress));
  }
  Result<std::unique_ptr<BlockWriter>> claim(Epoch epoch, std::uint64_t entry, std::uint64_t block,
                                             Encoding, std::uint64_t payload_bytes) override {
    EXPECT_EQ(epoch, 7u);
    return std::unique_ptr<BlockWriter>(
        std::make_unique<Writer>(*this, BlockPlace{entry, block}, payload_bytes));
  }
  void seal(const std::string&, Epoch, Done<SealedVersion> done) override {
    done(SealedVersion{"blake3:sealed", false});
  }
  Result<Epoch> open_body(const std::string&) override { return Epoch{0}; }
  Result<void> plan_body(Epoch, std::vector<TensorSpec>) override { return {}; }
  Result<UploadProgress> progress(const std::string&, Epoch) override { return UploadProgress(); }
  Result<void> check(const std::string&, Epoch) override { return {}; }
  Result<void> touch(Epoch) override { return {}; }
  void fail(Epoch, const Error&) override {}
  Result<void> abort(const std::string&, Epoch) override { return {}; }
  void commit(const std::string&, Epoch, CommitRequest, Done<CommitReport>) override {}
  std::shared_ptr<void> add_connection(std::function<void()>) override { return nullptr; }
  Status status() override { return {}; }

  std::string opened_by;
  UploadOffer offer;
  std::vector<BlockLedger::Run> missing{{0, 0, 2}, {1, 0, 1}};
  std::map<BlockPlace, Bytes> kept;

 private:
  // Gives its memory piece by piece, as one with a bounce buffer does.
  class Writer final : public BlockWriter {
   public:
    Writer(KeepingHost& host, BlockPlace place, std::uint64_t size_bytes)
        : host_(host), place_(place), bytes_(static_cast<std::size_t>(size_bytes)) {}
    std::span<std::byte> buffer() override {
      constexpr std::size_t kPiece = 1'000'000;
      return std::span(bytes_).subspan(filled_).first(std::min(kPiece, bytes_.size() - filled_));
    }
    Result<void> filled(std::size_t size_bytes) override {
      filled_ += size_bytes;
      return {};
    }
    std::uint64_t left_bytes() const override { return bytes_.size() - filled_; }
    BlockLedger::Claim found() const override { return BlockLedger::Claim::kYours; }
    Result<void> settle(const std::optional<Digest>&) override {
      EXPECT_EQ(left_bytes(), 0u);
      std::uint64_t entry_bytes = host_.offer.files.empty() ? 0 : host_.offer.files[0].size_bytes;
      if (place_.entry == 0) entry_bytes = tensor_size_bytes(host_.offer.tensors[0]).value();
      const Digest& announced = host_.offer.blocks.at(place_.entry).at(place_.block);
      if (block_digest(entry_bytes, place_.block, bytes_) != announced)
        return Error(ErrorCode::kCorrupt, "wrong");
      host_.kept[place_] = bytes_;
      return {};
    }

   private:
    KeepingHost& host_;
    BlockPlace place_;
    Bytes bytes_;
    std::size_t filled_ = 0;
  };
};

class HostTargetTest : public ::testing::Test {
 protected:
  // A tensor of one block and a half, and a file.
  HostTargetTest() {
    for (std::size_t i = 0; i < tensor_.size(); ++i) tensor_[i] = static_cast<std::byte>(i >> 5);
    manifest_.tensors.push_back({{"w", DType::kU8, {tensor_.size()}}, digest_of(tensor_)});
    manifest_.files.push_back({"config.json", file_.size(), digest_of(file_)});
    const std::span<const std::byte> whole = tensor_;
    digests_ = {{block_digest(whole.size(), 0, whole.first(kBlockBytes)),
                 block_digest(whole.size(), 1, whole.subspan(kBlockBytes))},
                {block_digest(file_.size(), 0, file_)}};
  }
  Result<PullTarget::Held> prepare() {
    return target_.blocking_prepare("blake3:x", manifest_, digests_);
  }
  // A piece arrives, as a pull brings it.
  void bring(std::size_t entry, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    Bytes scratch(bytes.size());
    const auto into = target_.place(entry, offset_bytes, scratch);
    ASSERT_EQ(into.size(), bytes.size());
    std::ranges::copy(bytes, into.begin());
    ASSERT_TRUE(target_.blocking_write(entry, offset_bytes, into));
  }

  Bytes tensor_ = Bytes(kBlockBytes + kBlockBytes / 2);
  Bytes file_ = Bytes(10, std::byte{'x'});
  Manifest manifest_;
  VersionDigests digests_;
  KeepingHost host_;
  HostTarget target_{host_, "someone"};
};

TEST_F(HostTargetTest, OpensAnUploadWithAllDigestsAndSealsIt) {
  ASSERT_TRUE(prepare());
  EXPECT_EQ(host_.opened_by, "someone");
  EXPECT_EQ(host_.offer.blocks, digests_);
  EXPECT_EQ(host_.offer.files.at(0).name, "config.json");
  EXPECT_EQ(target_.epoch(), 7u);

  ASSERT_TRUE(target_.blocking_finish());
  EXPECT_EQ(target_.sealed_id(), "blake3:sealed");
}

TEST_F(HostTargetTest, ABlockInTwoPartsReachesTheHostWhole) {
  ASSERT_TRUE(prepare());
  const auto first = std::span(std::as_const(tensor_)).first(kBlockBytes);
  bring(0, 1000, first.subspan(1000));
  EXPECT_TRUE(host_.kept.empty());
  bring(0, 0, first.first(1000));
  EXPECT_TRUE(std::ranges::equal((host_.kept.at({0, 0})), first));

  Bytes scratch(kBlockBytes);
  const auto read = target_.blocking_read(0, 0, scratch);
  ASSERT_TRUE(read);
  EXPECT_TRUE(std::ranges::equal(*read, first));

  bring(0, kBlockBytes, std::span(std::as_const(tensor_)).subspan(kBlockBytes));
  bring(1, 0, file_);
  EXPECT_EQ(host_.kept.size(), 3u);
}

TEST_F(HostTargetTest, WrongBytesLeaveTheBlockOpenAndMayComeAgain) {
  ASSERT_TRUE(prepare());
  bring(1, 0, Bytes(10, std::byte{'y'}));
  EXPECT_TRUE(host_.kept.empty());
  bring(1, 0, file_);
  EXPECT_EQ((host_.kept.at({1, 0})), file_);

  const auto first = std::span(std::as_const(tensor_)).first(kBlockBytes);
  Bytes wrong(first.begin(), first.end());
  wrong[5] ^= std::byte{1};
  Bytes scratch(kBlockBytes);
  for (const auto& bytes : {std::span<const std::byte>(wrong), first}) {
    bring(0, 0, bytes.first(1000));
    bring(0, 1000, bytes.subspan(1000));
    ASSERT_TRUE(target_.blocking_read(0, 0, scratch));
  }
  EXPECT_TRUE(std::ranges::equal((host_.kept.at({0, 0})), first));
}

TEST_F(HostTargetTest, WhatTheHostDoesNotMissIsHeld) {
  host_.missing = {{0, 1, 1}};
  const auto held = prepare();
  ASSERT_TRUE(held);
  EXPECT_EQ(held->blocks, (std::vector<BlockPlace>{{0, 0}, {1, 0}}));
  EXPECT_FALSE(held->maybe_more);
}

TEST(PullIntoAReceiver, FetchesWhatItDoesNotServeAlready) {
  Bench source, receiver;
  Tensors next = source.first();
  next.data[next.find("model.large.weight")][kBlockBytes + 5] ^= std::byte{1};
  const auto pushed = blocking_push(source.client(), next.views(), {});
  ASSERT_TRUE(pushed) << pushed.error().message();

  HostTarget target(*receiver.receiver().upload_host(), "someone");
  const auto report = blocking_pull(source.client(), pushed->id, target);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->fetched_bytes, kBlockBytes) << "one block";
  EXPECT_EQ(target.sealed_id(), pushed->id);
  ASSERT_TRUE(blocking_result([&](Receiver::Done done) {
    receiver.receiver().finish_update("someone", "", std::move(done));
  }));
  EXPECT_EQ(receiver.served(), next.bytes());
}

}  // namespace
}  // namespace weft
