// What a version changes of another, told element by element, written, taken back and verified.

#include "weft/transfer/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/transfer/delta_fixture.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of base_model(), every 777th element of the tensor of two blocks, and one of another.
Model changed_model(std::byte by) {
  Model model = base_model();
  for (std::size_t i = 5; i < kLong; i += 777) model.of("long")[2 * i] ^= by;
  model.of("same")[4 * 49] ^= by;
  model.files["config.json"] = "{\"a\":2}";
  return model;
}

class Changes : public ::testing::Test {
 protected:
  Changes() : delta_(delta_of(base_, next_)) {
    const Model model = base_.model();
    auto layout = std::make_shared<const WeightLayout>(WeightLayout::make(model.specs).value());
    weights_ = WeightSet::blocking_allocate(std::move(layout)).value();
    for (std::size_t i = 0; i < tensors().size(); ++i) {
      std::ranges::copy(Model(model).of(tensors()[i].name), weights_->tensor(i).begin());
    }
  }

  const std::vector<TensorSpec>& tensors() const { return weights_->layout().tensors(); }

  // What `delta` says that `next_` changes.
  VersionChanges changes_of(const Delta& delta) {
    VersionChanges changes{next_.shared(), {}, {}};
    DeltaApplyOptions options;
    options.patch_sink = [&](const BlockPlace& place, DeltaPatch patch) -> Result<void> {
      changes.blocks.push_back({place, std::move(patch)});
      return {};
    };
    const DeltaStep step = step_of(delta, next_.shared());
    std::vector<BlockPlace> held;
    const DeltaPair pair(base_.content(), next_.content());
    for (std::uint64_t entry = 0; entry < tensors().size(); ++entry) {
      for (std::uint64_t block = 0; block < next_.content().blocks[entry].size(); ++block) {
        if (!pair.is_changed({entry, block})) held.push_back({entry, block});
      }
    }
    const auto& content = next_.content();
    EXPECT_TRUE(sink_.blocking_prepare(content.id, content.manifest, content.blocks));
    const auto applied = blocking_apply_deltas(base_.blocks(), {&step, 1}, sink_, held, options);
    EXPECT_TRUE(applied) << message_of(applied);
    return changes;
  }

  const Version base_{base_model()}, next_{changed_model(std::byte{1})};
  const Delta delta_;
  std::shared_ptr<WeightSet> weights_;  // of the base
  Sink sink_;
};

TEST_F(Changes, AreToldOneByOne) {
  const VersionChanges changes = changes_of(delta_);
  const std::vector<TensorChanges> found = changes.tensors();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(tensors()[found[0].tensor()].name, "long");
  std::vector<std::int64_t> expected;
  for (std::size_t i = 5; i < kLong; i += 777) expected.push_back(static_cast<std::int64_t>(i));
  EXPECT_EQ(found[0].elements(), expected);
  const Bytes values = found[0].values();
  ASSERT_EQ(values.size(), 2 * expected.size());
  Bytes after = next_.model().of("long");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(values[2 * i], after[2 * static_cast<std::size_t>(expected[i])]);
  }
  EXPECT_THAT(found[1].elements(), ElementsAre(49));
  EXPECT_EQ(sink_.by_name().at("config.json"), by_name(next_.model()).at("config.json"));
}

TEST_F(Changes, AreWrittenAndTakenBack) {
  const VersionChanges changes = changes_of(delta_);
  for (const TensorChanges& tensor : changes.tensors()) {
    const std::string& name = tensors()[tensor.tensor()].name;
    Bytes memory = base_.model().of(name);
    EXPECT_TRUE(tensor.check(memory));
    const Bytes replaced = tensor.write(memory);
    EXPECT_EQ(memory, next_.model().of(name));
    EXPECT_FALSE(tensor.check(memory));
    tensor.undo(memory, replaced);
    EXPECT_EQ(memory, base_.model().of(name));
  }
}

TEST_F(Changes, AreNotForOtherValues) {
  const VersionChanges changes = changes_of(delta_);
  const TensorChanges tensor = changes.tensors()[0];
  Bytes memory = base_.model().of("long");
  memory[0] ^= std::byte{1};  // stays as it is
  EXPECT_TRUE(tensor.check(memory));
  const auto last = static_cast<std::size_t>(tensor.elements().back());
  memory[2 * last] ^= std::byte{1};
  EXPECT_THAT(message_of(tensor.check(memory)), HasSubstr("tensor `long`, block 1"));
}

TEST_F(Changes, AreVerifiedBeforeTheyAreAppliedAndAfter) {
  const VersionChanges changes = changes_of(delta_);
  EXPECT_TRUE(blocking_verify_changes(changes, *weights_, false, 2));
  EXPECT_FALSE(blocking_verify_changes(changes, *weights_, true, 2));
  apply_changes(changes, *weights_);
  EXPECT_TRUE(blocking_verify_changes(changes, *weights_, true, 2));
  weights_->tensor(changes.tensors()[0].tensor())[0] ^= std::byte{1};
  EXPECT_THAT(message_of(blocking_verify_changes(changes, *weights_, true, 2)),
              AllOf(HasSubstr(next_.id()), HasSubstr("tensor `long`, block 0")));
}

TEST_F(Changes, OfAPublisherThatIsWrongAreFoundOut) {
  const Version other(changed_model(std::byte{2}));
  const VersionChanges changes = changes_of(delta_of(base_, other));
  for (const bool applied : {false, true}) {
    if (applied) apply_changes(changes, *weights_);
    EXPECT_THAT(message_of(blocking_verify_changes(changes, *weights_, applied, 1)),
                AllOf(HasSubstr(next_.id()), HasSubstr("another digest")));
  }
}

}  // namespace
}  // namespace weft
