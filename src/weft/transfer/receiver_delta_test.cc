// Blocks that come as deltas: into a second set, and as patches in place.

#include <algorithm>
#include <thread>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/codec/delta_codec.h"
#include "weft/codec/elem_kind.h"
#include "weft/protocol/block_frame.h"
#include "weft/transfer/receiver.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;
using ::testing::HasSubstr;

Digest value_of(const Tensors& tensors, std::size_t tensor) {
  return block_digest(tensors.data[tensor].size(), 0, tensors.data[tensor]);
}

std::string delta_body(const Tensors& base, const Tensors& next) {
  return changes_body(base, next, delta_frame);
}

TEST(Deltas, AreListedWhereThereIsABase) {
  Bench bench(small_model());
  const auto tensors = bench.first();

  const auto without = bench.call("POST", "/weft/v1/uploads", skeleton(tensors), "a");
  ASSERT_EQ(
      bench.call("DELETE", "/weft/v1/uploads/" + member(without.body, "upload"), "", "a").status,
      200);
  const auto based =
      bench.call("POST", "/weft/v1/uploads", with(skeleton(tensors), base_member(bench)), "b");

  EXPECT_THAT(without.body, HasSubstr(R"("encodings":["identity","zstd"])"));
  EXPECT_THAT(based.body, HasSubstr(R"("encodings":["identity","zstd","sparse","delta"])"));
}

TEST(Deltas, OfFewAllOrNoChangesMakeTheVersion) {
  Bench bench(large_model());
  auto base = bench.first();
  std::uint64_t sent_bytes = 0;
  for (const auto& next : {changed(base), base, random_tensors(bench.model(), 2),
                           filled_tensors(bench.model(), std::byte{0})}) {
    const auto upload = open_upload(bench, with(skeleton(next), base_member(bench)));
    const std::string body = delta_body(base, next);
    sent_bytes += body.size();

    const auto answer = bench.call("PUT", upload + "/blocks", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(bench.served(), base.bytes());
    ASSERT_EQ(seal_and_commit(bench, upload).status, 200);

    EXPECT_EQ(bench.served(), next.bytes());
    base = next;
  }
  const std::uint64_t counted = bench.receiver().metrics().bytes.at("delta");
  EXPECT_GT(counted, 0u);
  EXPECT_LT(counted, sent_bytes);
}

class BadDeltas : public testing::Test {
 protected:
  int put(std::span<const std::byte> payload) { return put_as(payload, value_of(next_, 0)); }
  int put_as(std::span<const std::byte> payload, const Digest& digest) {
    answer_ =
        bench_.call("PUT", upload_ + "/blocks", frame(0, 0, Encoding::kDelta, payload, digest));
    return answer_.status;
  }

  Bench bench_{small_model()};
  const Tensors base_ = bench_.first(), next_ = changed(base_);
  const std::string upload_ = open_upload(bench_, with(skeleton(next_), base_member(bench_)));
  http::Response answer_;
};

TEST_F(BadDeltas, AreRefusedAtEveryByteAndTheBlockIsOpenAgain) {
  const Bytes right = delta_payload(base_, next_, 0, 0);
  for (std::size_t i = 0; i < right.size(); ++i) {
    Bytes flipped = right;
    flipped[i] ^= std::byte{4};
    const int status = put(flipped);
    // What was made by another version of the format is not supported; all else is broken.
    EXPECT_EQ(status, i == 0 ? 415 : 422) << "byte " << i << ": " << answer_.body;
    EXPECT_THAT(answer_.body, HasSubstr(next_.specs[0].name + ", block 0"));
  }
  for (std::size_t size = 1; size < right.size(); ++size)
    EXPECT_EQ(put(std::span(right).first(size)), 422) << size << " bytes";
  EXPECT_EQ(put(Bytes(base_.data[0].size() + kDeltaFrameBytes + 1)), 400);

  EXPECT_EQ(bench_.served(), base_.bytes());
  EXPECT_EQ(bench_.call("PUT", upload_ + "/blocks", delta_body(base_, next_)).status, 200);
  EXPECT_EQ(seal_and_commit(bench_, upload_).status, 200);
  EXPECT_EQ(bench_.served(), next_.bytes());
}

TEST_F(BadDeltas, OfAnotherBaseOrToAnotherBlockAreRefused) {
  const auto other_base = changed(base_, 800);
  EXPECT_EQ(put(delta_payload(other_base, next_, 0, 0)), 409);
  EXPECT_THAT(answer_.body, HasSubstr(next_.specs[0].name + ", block 0"));

  // The base is the right one where it is looked at, but not elsewhere.
  auto elsewhere = base_;
  elsewhere.data[0][3] ^= std::byte{1};
  auto changed_elsewhere = next_;
  changed_elsewhere.data[0][3] ^= std::byte{1};
  const int status =
      put_as(delta_payload(elsewhere, changed_elsewhere, 0, 0), value_of(changed_elsewhere, 0));
  EXPECT_TRUE(status == 422 || status == 409) << answer_.body;

  EXPECT_EQ(put(delta_payload(base_, changed(base_, 700), 0, 0)), 422);
  EXPECT_EQ(bench_.served(), base_.bytes());
}

TEST(Deltas, OfWhatHasNoBaseInThatFormAreRefused) {
  Bench bench(small_model());
  auto next = bench.first();
  const std::size_t norm = next.find("model.norm.weight");
  next.specs[norm].dtype = DType::kBF16;
  next.data[norm].assign(32, std::byte{0x3f});
  const auto upload = open_upload(bench, with(skeleton(next), base_member(bench)));

  const auto answer = bench.call("PUT", upload + "/blocks", delta_frame(next, next, norm, 0));

  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("send it whole"));
}

class DeltaPatches : public testing::Test {
 protected:
  static ReceiverOptions options(Verify verify = Verify::kBackground,
                                 std::uint64_t max_patch_bytes = 1 << 20) {
    ReceiverOptions options;
    options.commit_mode = CommitMode::kPatch;
    options.max_patch_bytes = max_patch_bytes;
    options.verify = verify;
    return options;
  }
  static std::string open(Bench& bench, const Tensors& next) {
    return open_upload(bench, with(skeleton(next), base_member(bench)));
  }
  // A delta of the right base whose result is not what its sender says.
  static std::string lying_body(const Tensors& base, const Tensors& next) {
    std::string body;
    for (std::size_t i = 0; i < next.data.size(); ++i) {
      if (next.data[i].empty()) continue;
      body += frame(i, 0, Encoding::kDelta, delta_payload(base, changed(next, 300), i, 0),
                    value_of(next, i));
    }
    return body;
  }
};

TEST_F(DeltaPatches, AreWrittenOverWhatServes) {
  Bench bench(large_model(), options());
  auto base = bench.first();
  for (unsigned step = 1; step <= 3; ++step) {
    const auto next = changed(base, 500 * step);
    const auto upload = open(bench, next);
    const auto put = bench.call("PUT", upload + "/blocks", delta_body(base, next));
    ASSERT_EQ(put.status, 200) << put.body;
    EXPECT_EQ(bench.served(), base.bytes());
    ASSERT_EQ(seal_and_commit(bench, upload).status, 200);
    EXPECT_EQ(bench.served(), next.bytes());
    base = next;
  }
  Bench other(large_model());
  ASSERT_EQ(other.call("PUT", "/weft/v1/weights", base.file()).status, 200);
  EXPECT_EQ(other.current().id, bench.current().id);
}

TEST_F(DeltaPatches, AreHeldToTheMemoryThatTheyTakeUntilTheCommit) {
  const auto base = random_tensors(small_model(), 1);
  const std::size_t norm = base.find("model.norm.weight");
  // All elements of the first tensor change, in the same way: few bytes, many changes.
  auto many = base;
  for (std::size_t i = 0; i < many.data[0].size(); i += 2) many.data[0][i] ^= std::byte{1};
  ASSERT_LT(delta_payload(base, many, 0, 0).size(), 1000u);
  Bench bench(small_model(), options(Verify::kBackground, 1000));
  const auto upload = open(bench, many);
  for (int i = 0; i < 2; ++i) {
    const auto refused = bench.call("PUT", upload + "/blocks", delta_frame(base, many, 0, 0));
    EXPECT_EQ(refused.status, 413) << refused.body;
    EXPECT_THAT(refused.body, HasSubstr("0 bytes of changes are kept, 3072 more are over"));
  }

  // What was refused takes nothing any more.
  const auto few = changed(base, 1'000'000);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", delta_frame(base, few, norm, 0)).status, 200);
}

TEST_F(DeltaPatches, WithAWrongResultAreTakenBack) {
  Bench bench(small_model(), options());
  const auto base = bench.first();
  const auto before = bench.current();
  const auto next = changed(base);
  const auto upload = open(bench, next);
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", lying_body(base, next)).status, 200);
  ASSERT_EQ(seal_and_commit(bench, upload).status, 200);

  while (bench.target().commits() < 2) std::this_thread::yield();

  EXPECT_TRUE(bench.target().last_was_rollback());
  EXPECT_EQ(bench.served(), base.bytes());
  EXPECT_EQ(bench.current(), before);
  const auto again = open(bench, next);
  ASSERT_EQ(bench.call("PUT", again + "/blocks", delta_body(base, next)).status, 200);
  EXPECT_EQ(seal_and_commit(bench, again).status, 200);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST_F(DeltaPatches, WithFullVerificationAWrongResultIsRefusedBeforeTheCommit) {
  Bench bench(small_model(), options(Verify::kFull));
  const auto base = bench.first();
  const auto next = changed(base);
  const auto upload = open(bench, next);

  EXPECT_EQ(bench.call("PUT", upload + "/blocks", lying_body(base, next)).status, 422);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", delta_body(base, next)).status, 200);
}

TEST_F(DeltaPatches, OfAnotherBaseAreRefusedWhenTheyCome) {
  Bench bench(small_model(), options());
  const auto base = bench.first();
  const auto next = changed(base);
  const auto upload = open(bench, next);

  const auto answer =
      bench.call("PUT", upload + "/blocks", delta_frame(changed(base, 800), next, 0, 0));

  EXPECT_EQ(answer.status, 409) << answer.body;
  EXPECT_EQ(bench.served(), base.bytes());
}

}  // namespace
}  // namespace weft
