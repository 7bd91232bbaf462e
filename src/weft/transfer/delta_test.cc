// Deltas between versions: made, held against both, applied, in files, in chains.

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/temporary_dir.h"
#include "weft/transfer/delta_applier.h"
#include "weft/transfer/delta_file.h"
#include "weft/transfer/delta_maker.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/delta_stats.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/version_blocks.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

struct Model {
  std::vector<TensorSpec> specs;
  std::vector<Bytes> data;
  std::map<std::string, std::string> files;

  void add(TensorSpec spec, unsigned seed) {
    Bytes bytes(static_cast<std::size_t>(tensor_size_bytes(spec).value()));
    std::uint32_t state = seed;
    for (std::byte& b : bytes) {
      state = state * 1664525 + 1013904223;
      b = static_cast<std::byte>(state >> 24 & 0x3F);
    }
    specs.push_back(std::move(spec));
    data.push_back(std::move(bytes));
  }
  Bytes& of(std::string_view name) {
    const auto found = std::ranges::find(specs, name, &TensorSpec::name);
    return data[static_cast<std::size_t>(found - specs.begin())];
  }
};

// A model and its version.
class Version {
 public:
  explicit Version(Model model) : model_(std::move(model)) {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < model_.specs.size(); ++i) {
      views.push_back({model_.specs[i], model_.data[i]});
    }
    source_ = std::make_unique<MemorySource>(MemorySource::create(views, model_.files).value());
    blocks_ = std::make_unique<SourceVersion>(SourceVersion::blocking_make(*source_, 2).value());
  }

  const VersionBlocks& blocks() const { return *blocks_; }
  const VersionContent& content() const { return blocks_->content(); }
  const std::shared_ptr<const VersionContent>& shared() const { return blocks_->shared_content(); }
  const std::string& id() const { return content().id; }
  Model model() const { return model_; }

 private:
  Model model_;
  std::unique_ptr<MemorySource> source_;
  std::unique_ptr<SourceVersion> blocks_;
};

constexpr std::uint64_t kLong = kBlockBytes / 2 + 1000;  // of BF16: two blocks

Model base_model() {
  Model model;
  model.add({"long", DType::kBF16, {kLong}}, 1);
  model.add({"empty", DType::kF32, {0, 3}}, 2);
  model.add({"same", DType::kF32, {50}}, 3);
  model.add({"bytes", DType::kU8, {700}}, 4);
  model.add({"gone", DType::kF32, {9}}, 5);
  model.add({"reshaped", DType::kF32, {4, 5}}, 6);
  model.files = {{"config.json", "{\"a\":1}"}, {"vocab.txt", "abc"}};
  return model;
}

// Most of what may change does.
Model next_model() {
  Model model = base_model();
  for (std::size_t i = 0; i < kLong; i += 5000) model.of("long")[2 * i] ^= std::byte{1};
  model.of("bytes")[13] = std::byte{99};
  std::erase_if(model.specs, [](const TensorSpec& spec) { return spec.name == "gone"; });
  model.data.erase(model.data.begin() + 4);
  model.specs[4].shape = {5, 4};
  model.add({"added", DType::kBF16, {300}}, 7);
  model.files["config.json"] = "{\"a\":2}";
  model.files["vocab.txt"] = "abcd";
  return model;
}

// A small one, for what is tried at every byte.
Model tiny_model(unsigned seed) {
  Model model;
  model.add({"w", DType::kBF16, {40}}, 1);
  model.add({"x", DType::kF32, {3}}, 2);
  model.of("w")[2 * seed] ^= std::byte{1};
  return model;
}

struct Delta {
  DeltaIndex index;
  std::vector<Bytes> payloads;
};

Result<Delta> made(const VersionBlocks& base, const VersionBlocks& target,
                   const DeltaMakeOptions& options = {}) {
  Delta delta;
  const DeltaPayloadSink sink = [&](std::size_t, View payload) -> Result<void> {
    delta.payloads.emplace_back(payload.begin(), payload.end());
    return {};
  };
  WEFT_TRY(delta.index, blocking_make_delta(base, target, sink, options));
  return delta;
}
Delta delta_of(const Version& base, const Version& target) {
  return made(base.blocks(), target.blocks()).value();
}

DeltaStep step_of(const Delta& delta, std::shared_ptr<const VersionContent> target) {
  return {std::move(target), &delta.index,
          [&delta](std::size_t row, std::span<std::byte>) { return View(delta.payloads[row]); }};
}

std::map<std::string, Bytes> by_name(const Model& model) {
  std::map<std::string, Bytes> all;
  for (std::size_t i = 0; i < model.specs.size(); ++i) all[model.specs[i].name] = model.data[i];
  for (const auto& [name, text] : model.files) {
    const auto bytes = std::as_bytes(std::span(text));
    all[name].assign(bytes.begin(), bytes.end());
  }
  return all;
}

// Into memory; it says whether it was finished.
class Sink final : public PullTarget {
 public:
  Result<Held> blocking_prepare(const std::string& id, const Manifest& manifest,
                                const VersionDigests& digests) override {
    manifest_ = manifest;
    return memory_.blocking_prepare(id, manifest, digests);
  }
  std::span<std::byte> place(std::size_t entry, std::uint64_t offset_bytes,
                             std::span<std::byte> scratch) override {
    return memory_.place(entry, offset_bytes, scratch);
  }
  Result<void> blocking_write(std::size_t, std::uint64_t, View) override { return {}; }
  Result<View> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                             std::span<std::byte> scratch) const override {
    return memory_.blocking_read(entry, offset_bytes, scratch);
  }
  Result<void> blocking_finish() override {
    finished = true;
    return {};
  }

  std::map<std::string, Bytes> by_name() const {
    std::map<std::string, Bytes> all;
    for (std::size_t i = 0; i < entry_count(manifest_); ++i) {
      Bytes scratch(static_cast<std::size_t>(entry_size_bytes(manifest_, i)));
      const auto bytes = memory_.blocking_read(i, 0, scratch).value();
      all[entry_name(manifest_, i)].assign(bytes.begin(), bytes.end());
    }
    return all;
  }

  bool finished = false;

 private:
  MemoryTarget memory_;
  Manifest manifest_;
};

// A version some of whose bytes have gone wrong since it was hashed.
class Damaged final : public VersionBlocks {
 public:
  Damaged(const VersionBlocks& right, std::string name, std::uint64_t block)
      : right_(right), name_(std::move(name)), block_(block) {}

  const VersionContent& content() const override { return right_.content(); }
  Result<View> blocking_read(const BlockPlace& place, std::span<std::byte> scratch) const override {
    WEFT_TRY(const View bytes, right_.blocking_read(place, scratch));
    std::ranges::copy(bytes, scratch.begin());
    if (entry_name(content().manifest, place.entry) == name_ && place.block == block_) {
      scratch[0] ^= std::byte{1};
    }
    return View(scratch);
  }

 private:
  const VersionBlocks& right_;
  const std::string name_;
  const std::uint64_t block_;
};

Result<void> apply_to(PullTarget& sink, const VersionBlocks& base, std::span<const DeltaStep> steps,
                      unsigned threads = 1) {
  const VersionContent& target = *steps.back().target;
  WEFT_TRY_VOID(sink.blocking_prepare(target.id, target.manifest, target.blocks));
  WEFT_TRY_VOID(blocking_apply_deltas(base, steps, sink, {}, {.threads = threads}));
  return sink.blocking_finish();
}

std::string message_of(const auto& result) {
  return result ? "no error" : result.error().message();
}

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

TEST(DeltaFile, HasAllThatApplyingTakes) {
  const TemporaryDir dir;
  const Version base(base_model()), next(next_model());
  const auto report = blocking_write_delta_file(dir / "d", base.blocks(), next.blocks());
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->file_bytes, fs::file_size(dir / "d"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);

  const auto file = DeltaFile::blocking_open(dir / "d");
  ASSERT_TRUE(file) << file.error().message();
  DeltaStep step;
  step.target = delta_target(base.content(), file->manifest(), file->index()).value();
  step.index = &file->index();
  step.blocking_read = [&](std::size_t row, std::span<std::byte> scratch) {
    return file->blocking_read_payload(row, scratch);
  };
  Sink sink;
  ASSERT_TRUE(apply_to(sink, base.blocks(), {&step, 1}));
  EXPECT_EQ(sink.by_name(), by_name(next.model()));
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(DeltaFile, IsRefusedWhenAnyBitIsWrongOrAnyByteMissing) {
  const TemporaryDir dir;
  const Version base(tiny_model(1)), next(tiny_model(2));
  ASSERT_TRUE(blocking_write_delta_file(dir / "d", base.blocks(), next.blocks()));
  const std::string right = blocking_read_file(dir / "d").value();
  ASSERT_LT(right.size(), 1000u);
  for (std::size_t at = 0; at < right.size(); ++at) {
    std::string flipped = right;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    write_file(dir / "x", flipped);
    const auto wrong = DeltaFile::blocking_open(dir / "x");
    ASSERT_FALSE(wrong) << at;
    EXPECT_THAT(wrong.error().message(), HasSubstr((dir / "x").string()));
    write_file(dir / "x", right.substr(0, at));
    ASSERT_FALSE(DeltaFile::blocking_open(dir / "x")) << at;
  }
  write_file(dir / "x", right + "x");
  EXPECT_FALSE(DeltaFile::blocking_open(dir / "x"));
  write_file(dir / "x", right);
  EXPECT_TRUE(DeltaFile::blocking_open(dir / "x"));
}

TEST(DeltaFile, IsNotThereAfterAnError) {
  const TemporaryDir dir;
  const Version base(tiny_model(1)), next(tiny_model(2));
  EXPECT_FALSE(blocking_write_delta_file(dir / "d", base.blocks(), Damaged(next.blocks(), "w", 0)));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(DeltaStats, CountWhatChangesAndWhatEachEncodingNeeds) {
  const Version base(base_model()), next(next_model());
  const auto entries = blocking_delta_stats(base.blocks(), next.blocks(), 2).value();
  std::map<std::string, DeltaEntryStats> stats;
  for (const DeltaEntryStats& each : entries) {
    stats[entry_name(next.content().manifest, each.entry)] = each;
  }
  EXPECT_EQ(stats.at("long").elements, kLong);
  EXPECT_EQ(stats.at("long").changed, (kLong + 4999) / 5000);
  EXPECT_EQ(stats.at("long").bytes.identity, 2 * kLong);
  EXPECT_EQ(stats.at("long").bytes.sparse, 2 * 72 + 6 * stats.at("long").changed);
  EXPECT_LT(stats.at("long").bytes.delta, stats.at("long").bytes.xor_zstd);
  EXPECT_EQ(stats.at("same").changed, 0u);
  EXPECT_EQ(stats.at("same").bytes.identity, 0u);
  EXPECT_EQ(stats.at("added").changed, 300u);
  EXPECT_EQ(stats.at("added").bytes.sparse, 600u);
  EXPECT_EQ(stats.at("config.json").changed, 1u);
}

}  // namespace
}  // namespace weft
