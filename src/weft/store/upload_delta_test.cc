// Blocks that a store takes as deltas of a version it has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/codec/delta_codec.h"
#include "weft/store/store.h"
#include "weft/store/store_fixture.h"
#include "weft/testing/temporary_dir.h"

namespace weft::store_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> first_block(const Bytes& data) {
  return block_of(data, 0);
}

// A version in a store, and the upload of one that differs from it in a few elements.
class UploadedDeltas : public testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < next_.data[0].size(); i += 1000) next_.data[0][i] ^= std::byte{1};
    offer_ = offer_of(next_, true);
    offer_.base = push(*store_, old_).value().version.id;
    const auto opened = open_upload(*store_, "a", offer_).value();
    EXPECT_THAT(opened.encodings, ElementsAre(Encoding::kIdentity, Encoding::kZstd,
                                              Encoding::kSparse, Encoding::kDelta));
    epoch_ = opened.epoch;
  }
  Result<void> send_delta(std::span<const std::byte> payload) {
    return send(*store_, epoch_, 0, 0, Encoding::kDelta, payload, offer_.blocks[0][0]);
  }

  const TemporaryDir dir_;
  const std::unique_ptr<Store> store_ = Store::blocking_open(dir_ / "store").value();
  const Model old_ = random_model(1);
  Model next_ = random_model(1);
  UploadOffer offer_;
  Epoch epoch_ = 0;
};

TEST_F(UploadedDeltas, AreDecodedAgainstTheBlockOnDisk) {
  const auto payload =
      encode_delta(first_block(old_.data[0]), first_block(next_.data[0]), ElemKind::kBF16);
  EXPECT_LT(payload.size(), first_block(next_.data[0]).size() / 100);

  ASSERT_TRUE(send_delta(payload));

  ASSERT_TRUE(send_missing(*store_, "a", epoch_, next_));
  ASSERT_TRUE(seal(*store_, "a", epoch_));
  const std::string id = commit(*store_, "a", epoch_).value().version.id;
  EXPECT_EQ(pull(*store_, id).value(), next_.by_name());
  EXPECT_EQ(pull(*store_, *offer_.base).value(), old_.by_name());
  EXPECT_EQ(store_->stats().bytes_in.at("delta"), payload.size());
}

TEST_F(UploadedDeltas, ThatAreWrongAreRefusedAndLeaveTheBlockOpen) {
  auto other = old_;
  other.data[0][0] ^= std::byte{2};
  const auto next = first_block(next_.data[0]);
  const auto wrong_base = encode_delta(first_block(other.data[0]), next, ElemKind::kBF16);
  const auto wrong_result =
      encode_delta(first_block(old_.data[0]), first_block(other.data[0]), ElemKind::kBF16);
  auto broken = encode_delta(first_block(old_.data[0]), next, ElemKind::kBF16);
  broken[broken.size() / 2] ^= std::byte{1};
  const auto other_kind = encode_delta(first_block(old_.data[0]), next, ElemKind::kF16);

  const auto conflict = send_delta(wrong_base);
  EXPECT_EQ(conflict.error().code(), ErrorCode::kConflict);
  EXPECT_THAT(conflict.error().message(), HasSubstr(next_.specs[0].name + ", block 0"));
  for (const auto& payload : {wrong_result, broken, other_kind}) {
    const auto refused = send_delta(payload);
    EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(refused.error().message(), HasSubstr(next_.specs[0].name + ", block 0"));
  }

  ASSERT_TRUE(send_missing(*store_, "a", epoch_, next_));
  EXPECT_TRUE(seal(*store_, "a", epoch_));
}

}  // namespace
}  // namespace weft::store_test
