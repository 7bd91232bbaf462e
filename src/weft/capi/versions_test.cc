// Offers, changes in place, diffs: as a C program sees them.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/temporary_dir.h"
#include "weft/weft.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

constexpr std::uint64_t kShape[] = {4096};

template <typename T>
T sized() {
  T value = {};
  value.struct_size = sizeof(T);
  return value;
}

struct Model {
  explicit Model(float first) { data[0] = first; }

  std::vector<float> data = std::vector<float>(4096, 1.0f);
  weft_tensor tensor{"w", WEFT_F32, 1, kShape, data.data(), data.size() * sizeof(float)};

  weft_source source() const {
    auto source = sized<weft_source>();
    source.tensors = &tensor;
    source.tensor_count = 1;
    return source;
  }
};

float first_of(const weft_weights* weights) {
  weft_tensor tensor;
  EXPECT_EQ(weft_weights_tensor(weights, 0, &tensor), WEFT_OK);
  return *static_cast<const float*>(tensor.data);
}

class COffer : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(weft_offer_open(nullptr, &offer_), WEFT_OK) << weft_error_message();
    ASSERT_EQ(weft_client_open(weft_offer_url(offer_), nullptr, &client_), WEFT_OK);
  }
  void TearDown() override {
    weft_client_close(client_);
    weft_offer_close(offer_);
  }

  std::string offer(const Model& model) {
    const weft_source source = model.source();
    auto report = sized<weft_publish_report>();
    EXPECT_EQ(weft_offer_publish(offer_, &source, nullptr, &report), WEFT_OK)
        << weft_error_message();
    return report.id;
  }
  weft_weights* pull() {
    weft_weights* weights = nullptr;
    EXPECT_EQ(weft_pull(client_, "#main", nullptr, &weights, nullptr), WEFT_OK)
        << weft_error_message();
    return weights;
  }

  weft_offer* offer_ = nullptr;
  weft_client* client_ = nullptr;
};

TEST_F(COffer, WhatIsOfferedIsPulled) {
  const std::string id = offer(Model(2.0f));
  weft_weights* const weights = pull();
  EXPECT_THAT(weft_weights_id(weights), StrEq(id));
  EXPECT_EQ(first_of(weights), 2.0f);
  weft_weights_release(weights);
}

TEST_F(COffer, ChangesAreWrittenOverWhatTheyWereMadeAgainst) {
  offer(Model(2.0f));
  weft_weights* const before = pull();
  const std::string id = offer(Model(3.0f));
  weft_changes* changes = nullptr;
  auto report = sized<weft_pull_report>();
  ASSERT_EQ(weft_pull_changes(client_, "#main", before, nullptr, &changes, &report), WEFT_OK)
      << weft_error_message();
  EXPECT_EQ(report.deltas, 1u);
  ASSERT_EQ(weft_changes_count(changes), 1u);
  weft_change change;
  ASSERT_EQ(weft_changes_at(changes, 0, &change), WEFT_OK);
  EXPECT_EQ(change.count, 1u);
  EXPECT_EQ(change.elements[0], 0);
  EXPECT_EQ(*static_cast<const float*>(change.values), 3.0f);
  EXPECT_EQ(weft_changes_tensor(changes, 0), change.tensor);
  EXPECT_EQ(weft_changes_at(changes, 1, &change), WEFT_NOT_FOUND);
  EXPECT_EQ(weft_changes_tensor(changes, 1), SIZE_MAX);
  EXPECT_EQ(first_of(before), 2.0f);
  EXPECT_EQ(weft_changes_verify(changes, 0), WEFT_OK);
  const weft_weights* after = nullptr;
  ASSERT_EQ(weft_changes_apply(changes, &after), WEFT_OK);
  EXPECT_EQ(weft_changes_verify(changes, 0), WEFT_OK);
  EXPECT_THAT(weft_weights_id(after), StrEq(id));
  EXPECT_EQ(first_of(after), 3.0f);
  EXPECT_EQ(weft_changes_apply(changes, &after), WEFT_CONFLICT);
  weft_changes_close(changes);
  weft_weights_release(before);
  weft_weights_release(after);
}

TEST_F(COffer, ChangesAreWrittenIntoAnotherPlaceAndTakenBack) {
  offer(Model(2.0f));
  weft_weights* const before = pull();
  offer(Model(3.0f));
  weft_changes* changes = nullptr;
  ASSERT_EQ(weft_pull_changes(client_, "#main", before, nullptr, &changes, nullptr), WEFT_OK);
  weft_tensor tensor;
  ASSERT_EQ(weft_weights_tensor(before, weft_changes_tensor(changes, 0), &tensor), WEFT_OK);
  std::vector<float> place(tensor.size_bytes / sizeof(float));
  std::memcpy(place.data(), tensor.data, tensor.size_bytes);
  const std::vector<float> was = place;
  EXPECT_EQ(weft_changes_undo(changes, 0, place.data()), WEFT_CONFLICT);
  EXPECT_EQ(weft_changes_check(changes, 0, place.data()), WEFT_OK);
  ASSERT_EQ(weft_changes_write(changes, 0, place.data()), WEFT_OK);
  EXPECT_EQ(place[0], 3.0f);
  EXPECT_EQ(weft_changes_check(changes, 0, place.data()), WEFT_CONFLICT);
  ASSERT_EQ(weft_changes_undo(changes, 0, place.data()), WEFT_OK);
  EXPECT_EQ(place, was);
  EXPECT_EQ(weft_changes_write(changes, 1, place.data()), WEFT_NOT_FOUND);
  EXPECT_EQ(first_of(before), 2.0f);
  weft_changes_close(changes);
  weft_weights_release(before);
}

TEST_F(COffer, WithoutADeltaThereAreNoChanges) {
  offer(Model(2.0f));
  weft_weights* const before = pull();
  weft_changes* changes = nullptr;
  EXPECT_EQ(weft_pull_changes(client_, "#main", before, nullptr, &changes, nullptr), WEFT_CONFLICT);
  offer(Model(3.0f));
  offer(Model(4.0f));  // the one at hand is two versions back
  EXPECT_EQ(weft_pull_changes(client_, "#main", before, nullptr, &changes, nullptr),
            WEFT_UNSUPPORTED);
  EXPECT_THAT(weft_error_message(), HasSubstr("no shorter way"));
  weft_weights_release(before);
}

TEST(CDiff, MakesTheVersionOfItsBase) {
  const TemporaryDir dir;
  const Model base(2.0f), target(3.0f);
  const weft_source from = base.source(), to = target.source();
  auto report = sized<weft_diff_report>();
  const std::string file = dir / "diff";
  ASSERT_EQ(weft_diff(&from, &to, file.c_str(), nullptr, &report), WEFT_OK) << weft_error_message();
  EXPECT_EQ(report.changed_blocks, 1u);
  EXPECT_LT(report.file_bytes, report.total_bytes);
  weft_weights* weights = nullptr;
  ASSERT_EQ(weft_apply(&from, file.c_str(), nullptr, &weights, nullptr), WEFT_OK);
  EXPECT_THAT(weft_weights_id(weights), StrEq(report.id));
  EXPECT_EQ(first_of(weights), 3.0f);
  weft_weights_release(weights);
  EXPECT_EQ(weft_apply(&to, file.c_str(), nullptr, &weights, nullptr), WEFT_CONFLICT);
  EXPECT_EQ(weft_apply_folder(&from, file.c_str(), (dir / "model").c_str(), nullptr, nullptr),
            WEFT_OK)
      << weft_error_message();
}

}  // namespace
}  // namespace weft
