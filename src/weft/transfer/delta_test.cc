// Deltas between versions: made, held against both, applied, in chains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/transfer/delta_fixture.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeltaObject, MakesTheTargetOutOfTheBase) {
  const Version base(base_model()), next(next_model());
  const Delta delta = delta_of(base, next);

  const auto target = delta_target(base.content(), next.content().manifest, delta.index);
  ASSERT_TRUE(target) << target.error().message();
  EXPECT_EQ((*target)->id, next.id());
  EXPECT_EQ((*target)->blocks, next.content().blocks);
  Sink sink;
  const DeltaStep step = step_of(delta, *target);
  const auto applied = apply_to(sink, base.blocks(), {&step, 1}, 3);
  ASSERT_TRUE(applied) << applied.error().message();
  EXPECT_TRUE(sink.finished);
  EXPECT_EQ(sink.by_name(), by_name(next.model()));
}

TEST(DeltaObject, HasTheBlocksThatChangeAlone) {
  const Version base(base_model());
  Model model = base_model();
  model.of("long")[kBlockBytes] ^= std::byte{1};  // in its second block
  model.files["vocab.txt"] = "abd";
  const Version next(std::move(model));
  const Delta delta = delta_of(base, next);

  ASSERT_EQ(delta.index.blocks.size(), 2u);
  EXPECT_EQ(entry_name(next.content().manifest, delta.index.blocks[0].entry), "long");
  EXPECT_EQ(delta.index.blocks[0].block, 1u);
  EXPECT_EQ(entry_name(next.content().manifest, delta.index.blocks[1].entry), "vocab.txt");
  EXPECT_EQ(delta.index.packs.size(), 1u);
  EXPECT_LT(delta_payload_bytes(delta.index), 200u);
}

TEST(DeltaObject, BetweenEqualVersionsIsEmpty) {
  const Version base(base_model());
  const Delta delta = delta_of(base, base);
  EXPECT_TRUE(delta.index.blocks.empty());
  Sink sink;
  const DeltaStep step = step_of(delta, base.shared());
  ASSERT_TRUE(apply_to(sink, base.blocks(), {&step, 1}));
  EXPECT_EQ(sink.by_name(), by_name(base.model()));
}

TEST(DeltaObject, IsTheSameFromAnyNumberOfThreads) {
  const Version base(base_model()), next(next_model());
  const Delta one = delta_of(base, next);
  for (const unsigned threads : {2u, 5u}) {
    DeltaMakeOptions options;
    options.threads = threads;
    std::uint64_t last_done = 0;
    options.progress = [&](std::uint64_t done, std::uint64_t) { last_done = done; };
    const Delta other = made(base.blocks(), next.blocks(), options).value();
    EXPECT_EQ(other.index, one.index);
    EXPECT_EQ(other.payloads, one.payloads);
    EXPECT_EQ(last_done, one.index.blocks.size());
  }
}

TEST(DeltaObject, IsGivenUpWhenItDoesNotPayOrIsNotWanted) {
  const Version base(base_model()), next(next_model());
  DeltaMakeOptions options;
  const Delta whole = delta_of(base, next);
  options.limit_bytes = delta_payload_bytes(whole.index) + encode_delta_index(whole.index).size();
  EXPECT_TRUE(made(base.blocks(), next.blocks(), options));
  --options.limit_bytes;
  const auto large = made(base.blocks(), next.blocks(), options);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), ErrorCode::kTooLarge);
  options = {};
  options.cancelled = [] { return true; };
  EXPECT_EQ(made(base.blocks(), next.blocks(), options).error().code(), ErrorCode::kCancelled);
}

TEST(DeltaObject, IsNotMadeOfBytesThatAreNotTheVersions) {
  const Version base(base_model()), next(next_model());
  const auto from_wrong = made(Damaged(base.blocks(), "long", 1), next.blocks());
  EXPECT_THAT(message_of(from_wrong),
              AllOf(HasSubstr(base.id()), HasSubstr("tensor `long`, block 1")));
  const auto to_wrong = made(base.blocks(), Damaged(next.blocks(), "bytes", 0));
  ASSERT_FALSE(to_wrong);
  EXPECT_EQ(to_wrong.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(message_of(to_wrong),
              AllOf(HasSubstr(next.id()), HasSubstr("tensor `bytes`, block 0")));
}

class DeltaRules : public ::testing::Test {
 protected:
  std::string check(const DeltaIndex& index) const {
    return message_of(check_delta_index(DeltaPair(base_.content(), next_.content()), index));
  }
  std::string check_without(std::size_t row) const {
    DeltaIndex index = delta_.index;
    index.blocks.erase(index.blocks.begin() + static_cast<std::ptrdiff_t>(row));
    const auto composed = delta_target(base_.content(), next_.content().manifest, index);
    EXPECT_FALSE(composed);
    return check(index);
  }

  const Version base_{base_model()}, next_{next_model()};
  const Delta delta_ = delta_of(base_, next_);
};

TEST_F(DeltaRules, AHoleIsNamed) {
  EXPECT_EQ(check(delta_.index), "no error");
  const auto& rows = delta_.index.blocks;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    EXPECT_EQ(check_without(row),
              "delta of " + block_words(next_.content(), {rows[row].entry, rows[row].block}) +
                  ": is missing");
  }
}

TEST_F(DeltaRules, AnotherBaseOrTargetIsNamed) {
  DeltaIndex index = delta_.index;
  index.base.bytes[0] ^= std::byte{1};
  const auto checked = check_delta_index(DeltaPair(base_.content(), next_.content()), index);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), ErrorCode::kConflict);
  EXPECT_THAT(checked.error().message(),
              AllOf(HasSubstr(digest_text(index.base)), HasSubstr(base_.id())));
  EXPECT_EQ(delta_target(base_.content(), next_.content().manifest, index).error().code(),
            ErrorCode::kConflict);
  index = delta_.index;
  index.target.bytes[0] ^= std::byte{1};
  EXPECT_THAT(check(index), HasSubstr("the version is " + next_.id()));
  EXPECT_THAT(message_of(delta_target(base_.content(), base_.content().manifest, delta_.index)),
              HasSubstr("the version is " + base_.id()));
}

TEST_F(DeltaRules, BlocksThatAreNotThereOrDoNotChangeAreRefused) {
  DeltaIndex index = delta_.index;
  index.blocks.push_back({99, 0, 50, {}});
  EXPECT_THAT(check(index), HasSubstr("it has no block 0 of an entry 99"));
  index = delta_.index;
  const auto& tensors = next_.content().manifest.tensors;
  const auto same = std::find_if(tensors.begin(), tensors.end(),
                                 [](const auto& t) { return t.spec.name == "same"; });
  const auto entry = static_cast<std::uint32_t>(same - tensors.begin());
  const auto after = std::find_if(index.blocks.begin(), index.blocks.end(),
                                  [&](const auto& row) { return row.entry > entry; });
  index.blocks.insert(after, {entry, 0, 50, next_.content().blocks[entry][0]});
  EXPECT_THAT(check(index), HasSubstr("tensor `same`, block 0: is the base's, and yet there"));
}

TEST_F(DeltaRules, AnotherValueOrAPayloadThatCannotBeIsRefused) {
  DeltaIndex index = delta_.index;
  index.blocks[0].value.bytes[5] ^= std::byte{1};
  EXPECT_THAT(check(index), HasSubstr("is another block than the version's"));
  EXPECT_THAT(message_of(delta_target(base_.content(), next_.content().manifest, index)),
              HasSubstr("do not merge into the manifest's digest"));
  index = delta_.index;
  index.blocks[0].payload_bytes = 43;
  EXPECT_THAT(check(index), HasSubstr("a payload of 43 bytes for a block of 600"));
  index.blocks[0].payload_bytes = 645;
  EXPECT_THAT(check(index), HasSubstr("a payload of 645 bytes for a block of 600"));
}

TEST_F(DeltaRules, AManifestDoesNotGetMemoryThatTheIndexDoesNotHave) {
  Manifest manifest = next_.content().manifest;
  manifest.tensors[0].spec.shape = {std::uint64_t{1} << 60};
  DeltaIndex index = delta_.index;
  index.target = try_parse_digest(manifest_id(manifest)).value();
  EXPECT_THAT(message_of(delta_target(base_.content(), std::move(manifest), index)),
              HasSubstr("tensor `added`: the base has none like it, and not all of its blocks"));
}

class DeltaApply : public DeltaRules {
 protected:
  std::string apply(const VersionBlocks& base, const Delta& delta) {
    const DeltaStep step = step_of(delta, next_.shared());
    const auto applied = apply_to(sink_, base, {&step, 1}, 2);
    EXPECT_EQ(sink_.finished, applied.has_value());
    if (!applied) code_ = applied.error().code();
    return message_of(applied);
  }

  Sink sink_;
  ErrorCode code_ = ErrorCode::kInternal;
};

TEST_F(DeltaApply, ABrokenPayloadIsNamed) {
  Delta broken = delta_;
  broken.payloads.back()[30] ^= std::byte{1};
  const DeltaBlock& row = broken.index.blocks.back();
  EXPECT_THAT(apply(base_.blocks(), broken),
              HasSubstr(block_words(next_.content(), {row.entry, row.block})));
  EXPECT_EQ(code_, ErrorCode::kCorrupt);
}

TEST_F(DeltaApply, APayloadOfAnotherBlockIsNamed) {
  // Right by its own digest, and of the right size: another byte of the file.
  Model other = next_model();
  other.files["config.json"] = "{\"a\":3}";
  Delta mixed = delta_of(base_, Version(std::move(other)));
  mixed.index = delta_.index;
  EXPECT_THAT(apply(base_.blocks(), mixed),
              HasSubstr("file `config.json`, block 0: what it makes has another digest"));
  EXPECT_EQ(code_, ErrorCode::kCorrupt);
}

TEST_F(DeltaApply, ABaseThatHasGoneWrongIsNamed) {
  for (const auto& [name, block] : {std::pair("long", 1), std::pair("same", 0)}) {
    EXPECT_THAT(apply(Damaged(base_.blocks(), name, static_cast<std::uint64_t>(block)), delta_),
                AllOf(HasSubstr(base_.id()), HasSubstr(std::string("tensor `") + name + "`")));
    EXPECT_EQ(code_, ErrorCode::kConflict);
  }
}

// Four versions; in between a tensor is there for one version, and another changes its shape.
TEST(DeltaChain, GoesThroughAllStepsBlockByBlock) {
  std::vector<Model> models = {base_model(), next_model(), next_model(), next_model()};
  models[2].of("long")[0] ^= std::byte{2};
  models[2].add({"brief", DType::kF32, {7}}, 9);
  models[2].of("reshaped")[3] ^= std::byte{1};
  models[3].of("long")[0] ^= std::byte{6};
  models[3].of("same")[8] ^= std::byte{1};
  std::vector<std::unique_ptr<Version>> versions;
  for (const Model& model : models) versions.push_back(std::make_unique<Version>(model));
  std::vector<Delta> deltas;
  for (std::size_t i = 1; i < versions.size(); ++i) {
    deltas.push_back(delta_of(*versions[i - 1], *versions[i]));
  }
  std::vector<DeltaStep> steps;
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    steps.push_back(step_of(deltas[i], versions[i + 1]->shared()));
  }
  for (const unsigned threads : {1u, 4u}) {
    Sink sink;
    const auto applied = apply_to(sink, versions[0]->blocks(), steps, threads);
    ASSERT_TRUE(applied) << applied.error().message();
    EXPECT_EQ(sink.by_name(), by_name(models[3]));
  }
  for (Bytes& payload : deltas[1].payloads) payload.back() ^= std::byte{1};
  Sink sink;
  EXPECT_THAT(message_of(apply_to(sink, versions[0]->blocks(), steps)),
              HasSubstr("delta of version " + versions[2]->id()));
  EXPECT_FALSE(sink.finished);
}

TEST(DeltaChain, WhatIsHeldIsNotMade) {
  const Version base(tiny_model(1)), next(tiny_model(2));
  Delta delta = delta_of(base, next);
  for (Bytes& payload : delta.payloads) payload.clear();  // of `w`, which is not looked at
  const DeltaStep step = step_of(delta, next.shared());
  Sink sink;
  ASSERT_TRUE(sink.blocking_prepare(next.id(), next.content().manifest, next.content().blocks));
  const BlockPlace held{0, 0};
  std::uint64_t done_bytes = 0;
  DeltaApplyOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t) { done_bytes = done; };
  EXPECT_TRUE(blocking_apply_deltas(base.blocks(), {&step, 1}, sink, {&held, 1}, options));
  EXPECT_EQ(done_bytes, 92u);
  EXPECT_EQ(sink.by_name().at("x"), next.model().of("x"));
}
}  // namespace
}  // namespace weft
