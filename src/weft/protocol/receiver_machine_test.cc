#include "weft/protocol/receiver_machine.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::seconds;
using Claim = BlockLedger::Claim;
using FinishStep = UpdateMachine::FinishStep;
using Use = BlockClaim::Use;

Digest digest(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

// Two tensors of one block each, an empty one, and one file.
std::shared_ptr<const WeightLayout> make_layout() {
  return std::make_shared<const WeightLayout>(
      WeightLayout::make(
          {{"a", DType::kBF16, {4}}, {"b", DType::kBF16, {8}}, {"none", DType::kBF16, {0}}})
          .value());
}

// The version whose every block has the value digest(text + name).
Resident make_resident(const std::string& text, bool converted = false) {
  const auto layout = make_layout();
  Manifest manifest;
  std::vector<std::vector<Digest>> blocks;
  for (const TensorSpec& spec : layout->tensors()) {
    std::vector<Digest> values;
    if (spec.name != "none") values.push_back(digest(text + spec.name));
    manifest.tensors.push_back({spec, merge_block_digests(values)});
    blocks.push_back(values);
  }
  Resident resident;
  resident.file_blocks = {{digest(text + "config.json")}};
  manifest.files.push_back({"config.json", 10, merge_block_digests(resident.file_blocks.front())});
  blocks.push_back(resident.file_blocks.front());
  if (converted) blocks.clear();
  resident.content = make_version_content(std::move(manifest), std::move(blocks));
  resident.name = {resident.content->id, "default", converted};
  return resident;
}

UploadOffer make_offer(const std::string& text, bool with_digests = false) {
  UploadOffer offer;
  offer.tensors = make_layout()->tensors();
  offer.skeleton = digest(text + (with_digests ? " with digests" : ""));
  for (const TensorSpec& spec : offer.tensors) {
    offer.blocks.emplace_back();
    if (with_digests && spec.name != "none") offer.blocks.back() = {digest(text + spec.name)};
  }
  return offer;
}

// A receiver that serves version "0".
struct Bench {
  explicit Bench(ReceiverRules rules = {}) : machine(make_layout(), rules, make_resident("0")) {}

  Epoch open(const UploadOffer& offer) {
    const auto opening = machine.open_upload("t", offer, now);
    EXPECT_TRUE(opening) << opening.error().message();
    return opening ? opening->epoch : 0;
  }
  Staging& staging(Epoch epoch) { return *machine.staging(epoch).value(); }
  // Brings the blocks of both tensors as version `text` has them.
  void fill(Epoch epoch, const std::string& text, FrameForm form = FrameForm::kWhole) {
    Staging& to = staging(epoch);
    for (std::uint64_t entry = 0; entry < to.plan.tensors.size(); ++entry) {
      const std::string& name = to.plan.tensors[entry].spec.name;
      if (to.plan.sizes_bytes[entry] == 0) continue;
      const auto claim = machine.claim(to, {entry, 0}, form, 8, now);
      ASSERT_TRUE(claim) << claim.error().message();
      if (claim->found != Claim::kYours) continue;
      const std::optional<Digest> value = digest(text + name);
      const bool is_kept = claim->use == Use::kKeep;
      EXPECT_TRUE(machine.settle(to, *claim, is_kept ? std::nullopt : value, value, now));
    }
  }
  Result<void> seal(Epoch epoch) {
    WEFT_TRY(const auto sealing, machine.begin_seal("t", epoch, now));
    if (sealing->resident) return {};
    return machine.end_seal(*sealing, ReceiverMachine::compose(*sealing, *make_layout()), now);
  }
  FinishStep finish(CommitWish wish = {}) {
    return machine.finish("t", std::nullopt, wish, now).value();
  }
  // From opening to handing over.
  void stage(const std::string& text) {
    const Epoch epoch = open(make_offer(text));
    fill(epoch, text);
    EXPECT_TRUE(seal(epoch));
  }
  void commit(const std::string& text, CommitWish wish = {}) {
    stage(text);
    EXPECT_EQ(finish(wish), FinishStep::kCommit);
    machine.committed();
  }
  std::string serving() const { return machine.serving().name.id; }

  ReceiverMachine machine;
  Instant now{};
};

std::string id_of(const std::string& text) {
  return make_resident(text).name.id;
}

TEST(ReceiverMachine, AVersionIsStagedInTheSpareSetAndTheSetsChangePlaces) {
  Bench bench;
  const Epoch epoch = bench.open(make_offer("1"));
  EXPECT_EQ(bench.staging(epoch).set, 1u);
  bench.fill(epoch, "1");
  ASSERT_TRUE(bench.seal(epoch));
  ASSERT_NE(bench.machine.staged(bench.now), nullptr);

  ASSERT_EQ(bench.finish({.label = "step-1"}), FinishStep::kCommit);
  EXPECT_EQ(bench.machine.handover().set, 1u);
  EXPECT_FALSE(bench.machine.handover().new_files);
  bench.machine.committed();

  // The file is the receiver's own, and in the manifest.
  Resident expected = make_resident("1");
  Manifest manifest = expected.content->manifest;
  manifest.files = make_resident("0").content->manifest.files;
  EXPECT_EQ(bench.serving(), manifest_id(manifest));
  EXPECT_EQ(bench.machine.serving().name.label, "step-1");
  EXPECT_EQ(bench.machine.serving_set(), 1u);
  EXPECT_EQ(bench.machine.retired()->name.id, id_of("0"));
}

TEST(ReceiverMachine, FilesThatAreSentTakeOverWithTheVersion) {
  Bench bench;
  UploadOffer offer = make_offer("1");
  offer.files = {{"config.json", 10}, {"tokenizer.json", 3}};
  offer.blocks.resize(5);
  const Epoch epoch = bench.open(offer);
  bench.fill(epoch, "1");
  Staging& staging = bench.staging(epoch);
  for (std::uint64_t file = 0; file < 2; ++file) {
    const auto claim =
        bench.machine.claim(staging, {3 + file, 0}, FrameForm::kWhole, 3, bench.now).value();
    EXPECT_EQ(claim.use, Use::kStore);
    EXPECT_TRUE(bench.machine.settle(staging, claim, digest("f"), std::nullopt, bench.now));
  }
  ASSERT_TRUE(bench.seal(epoch));

  bench.finish();

  EXPECT_TRUE(bench.machine.handover().new_files);
  bench.machine.committed();
  EXPECT_EQ(bench.machine.serving().content->manifest.files.size(), 2u);
  EXPECT_EQ(bench.machine.serving().content->blocks.size(), 5u);
}

TEST(ReceiverMachine, FilesOverTheLimitOrWithPathsInTheirNamesAreRefused) {
  Bench bench;
  UploadOffer offer = make_offer("1");
  for (const char* name : {"", ".", "..", "a/b", "../x", ".hidden", "/etc/passwd"}) {
    offer.files = {{name, 1}};
    EXPECT_EQ(bench.machine.open_upload("t", offer, bench.now).error().code(),
              ErrorCode::kInvalidArgument)
        << name;
  }
  offer.files = {{"a", kMaxFilesBytes}, {"b", 1}};
  EXPECT_EQ(bench.machine.open_upload("t", offer, bench.now).error().code(), ErrorCode::kTooLarge);
  offer.files = {{"a", 1}, {"a", 1}};
  EXPECT_EQ(bench.machine.open_upload("t", offer, bench.now).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(bench.machine.state(bench.now), UpdateState::kIdle);
}

TEST(ReceiverMachine, ABaseThatDoesNotServeIsNotFoundAndNamed) {
  Bench bench;
  bench.commit("1");
  bench.machine.released(bench.machine.handover().epoch);
  UploadOffer offer = make_offer("2");
  offer.base = id_of("0");  // retired: about to be overwritten

  const Error error = bench.machine.open_upload("t", offer, bench.now).error();

  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_NE(error.message().find(id_of("0")), std::string::npos);
}

TEST(ReceiverMachine, ASetThatIsReleasedBeforeTheCommitIsToldIsFreeAfterIt) {
  Bench bench;
  const Epoch epoch = bench.open(make_offer("1"));
  bench.fill(epoch, "1");
  ASSERT_TRUE(bench.seal(epoch));
  bench.finish();
  bench.machine.released(epoch);
  EXPECT_FALSE(bench.machine.open_body("t", bench.now)) << "it is being committed";

  bench.machine.committed();

  const auto opening = bench.machine.open_body("t", bench.now);
  ASSERT_TRUE(opening);
  EXPECT_NE(opening->epoch, 0u);
}

TEST(ReceiverMachine, AConvertedVersionIsNoBaseAndGivesOutNoBytes) {
  Bench bench;
  UploadOffer offer = make_offer("1");
  for (TensorSpec& spec : offer.tensors) spec.dtype = DType::kF32;
  const Epoch epoch = bench.open(offer);
  bench.fill(epoch, "1");
  ASSERT_TRUE(bench.seal(epoch));
  bench.finish();
  bench.machine.committed();
  bench.machine.released(epoch);
  ASSERT_TRUE(bench.machine.serving().name.converted);
  EXPECT_TRUE(bench.machine.serving().content->blocks.empty());

  UploadOffer next = make_offer("2");
  next.base = bench.serving();
  EXPECT_EQ(bench.machine.open_upload("t", next, bench.now).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(bench.machine.begin_read(bench.serving()).error().code(), ErrorCode::kConflict);
  // The receiver's own file is still known block by block.
  bench.commit("3");
  EXPECT_EQ(bench.machine.serving().content->blocks.size(), 4u);
}

TEST(ReceiverMachine, APartialUploadTakesTheRestFromItsBase) {
  Bench bench;
  UploadOffer offer;
  offer.tensors = {make_layout()->tensors()[1]};
  offer.blocks.resize(1);
  EXPECT_EQ(bench.machine.open_upload("t", offer, bench.now).error().code(),
            ErrorCode::kInvalidArgument);
  offer.base = bench.serving();
  offer.partial = true;

  const Epoch epoch = bench.open(offer);
  Staging& staging = bench.staging(epoch);
  const auto copies = ReceiverMachine::copies(staging);
  EXPECT_EQ(copies, (std::vector<BlockPlace>{{1, 0}}));  // `a`, behind what is sent
  for (const BlockPlace place : copies) {
    const auto claim = bench.machine.claim(staging, place, FrameForm::kWhole, 0, bench.now).value();
    EXPECT_TRUE(bench.machine.settle(staging, claim, digest("0a"), std::nullopt, bench.now));
  }
  bench.fill(epoch, "1");
  ASSERT_TRUE(bench.seal(epoch));
  bench.finish();
  bench.machine.committed();

  const auto& blocks = bench.machine.serving().content->blocks;
  EXPECT_EQ(blocks[0].front(), digest("0a"));
  EXPECT_EQ(blocks[1].front(), digest("1b"));
}

TEST(ReceiverMachine, ChangesNeedABase) {
  Bench bench;
  const Epoch epoch = bench.open(make_offer("1"));
  EXPECT_EQ(bench.machine.claim(bench.staging(epoch), {0, 0}, FrameForm::kChanges, 8, bench.now)
                .error()
                .code(),
            ErrorCode::kInvalidArgument);
}

TEST(ReceiverMachine, BytesThatAreNotWhatWasSaidLeaveTheBlockOpen) {
  Bench bench;
  const Epoch epoch = bench.open(make_offer("1", true));
  Staging& staging = bench.staging(epoch);
  const auto claim = bench.machine.claim(staging, {0, 0}, FrameForm::kWhole, 8, bench.now).value();

  EXPECT_EQ(
      bench.machine.settle(staging, claim, digest("1a"), digest("x"), bench.now).error().code(),
      ErrorCode::kCorrupt);
  EXPECT_EQ(
      bench.machine.settle(staging, claim, digest("x"), digest("x"), bench.now).error().code(),
      ErrorCode::kCorrupt);
  bench.machine.give_up(staging, claim, bench.now);

  EXPECT_EQ(bench.machine.claim(staging, {0, 0}, FrameForm::kWhole, 8, bench.now)->found,
            Claim::kYours);
}

TEST(ReceiverMachine, RollingBackServesTheRetiredVersionOnce) {
  Bench bench;
  bench.commit("1", {.label = "new"});
  const std::string id = bench.serving();
  const auto roll_back = [&](const std::string& to, std::optional<std::string> expected = {}) {
    return bench.machine.roll_back("t", to, expected, {}, bench.now);
  };

  EXPECT_EQ(roll_back("blake3:00").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(roll_back(id_of("0"), "blake3:00").error().code(), ErrorCode::kPreconditionFailed);
  ASSERT_EQ(roll_back(id_of("0"), id).value(), FinishStep::kCommit);
  EXPECT_EQ(roll_back(id_of("0")).value(), FinishStep::kJoin);
  EXPECT_EQ(bench.machine.handover().set, 0u);
  bench.machine.committed();
  EXPECT_EQ(roll_back(id_of("0")).value(), FinishStep::kRepeat);

  EXPECT_EQ(bench.serving(), id_of("0"));
  EXPECT_EQ(bench.machine.serving().name.label, "default");
  EXPECT_EQ(bench.machine.retired()->name.id, id);
  // A late repeat of the commit that was undone is no success.
  EXPECT_FALSE(bench.machine.finish("t", std::nullopt, {.label = "new"}, bench.now));
}

TEST(ReceiverMachine, ACommitMaySayWhatMustServe) {
  Bench bench;
  bench.stage("1");

  EXPECT_EQ(
      bench.machine.finish("t", std::nullopt, {.if_match = "blake3:00"}, bench.now).error().code(),
      ErrorCode::kPreconditionFailed);
  EXPECT_EQ(bench.machine.state(bench.now), UpdateState::kStaged);
  EXPECT_EQ(bench.finish({.if_match = id_of("0")}), FinishStep::kCommit);
}

TEST(ReceiverMachine, WhatIsStagedIsCommittedNotRolledBackTo) {
  Bench bench;
  bench.stage("1");
  const std::string id = bench.machine.staged(bench.now)->name.id;
  EXPECT_EQ(bench.machine.roll_back("t", id, std::nullopt, {}, bench.now).error().code(),
            ErrorCode::kConflict);
}

TEST(ReceiverMachine, OnlyOneThingHappensAtATime) {
  Bench bench;
  bench.commit("1");
  bench.machine.released(bench.machine.handover().epoch);
  ASSERT_TRUE(bench.machine.start("other", bench.now));
  EXPECT_EQ(bench.machine.roll_back("t", id_of("0"), std::nullopt, {}, bench.now).error().code(),
            ErrorCode::kConflict);
  bench.now += seconds(300);
  ASSERT_EQ(bench.machine.roll_back("t", id_of("0"), std::nullopt, {}, bench.now).value(),
            FinishStep::kCommit);
  EXPECT_EQ(bench.machine.open_upload("t", make_offer("2"), bench.now).error().code(),
            ErrorCode::kConflict);
}

TEST(ReceiverMachine, StagingWaitsForReadersOfTheRetiredSetForTheirGrace) {
  Bench bench;
  bench.commit("1");
  bench.machine.released(bench.machine.handover().epoch);
  const SetIndex old = bench.machine.begin_read(id_of("0")).value();
  const SetIndex serving = bench.machine.begin_read(bench.serving()).value();

  EXPECT_EQ(bench.machine.open_upload("t", make_offer("2"), bench.now)->epoch, 0u);
  EXPECT_EQ(bench.machine.cut_readers_at(), bench.now + seconds(5));
  EXPECT_EQ(bench.machine.begin_read(id_of("0")).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(bench.machine.state(bench.now), UpdateState::kIdle);
  bench.now += seconds(1);
  EXPECT_EQ(bench.machine.open_upload("t", make_offer("2"), bench.now)->epoch, 0u);
  EXPECT_EQ(bench.machine.cut_readers_at(), bench.now + seconds(4));  // from the first call on
  bench.machine.end_read(old);

  EXPECT_NE(bench.machine.open_upload("t", make_offer("2"), bench.now)->epoch, 0u);
  EXPECT_FALSE(bench.machine.cut_readers_at());
  bench.machine.end_read(serving);
}

TEST(ReceiverMachine, TheRetiredVersionIsGoneOnceStagingBegins) {
  Bench bench;
  bench.commit("1");
  bench.machine.released(bench.machine.handover().epoch);
  ASSERT_NE(bench.machine.retired(), nullptr);

  const Epoch epoch = bench.open(make_offer("2"));
  EXPECT_EQ(bench.machine.retired(), nullptr);
  ASSERT_TRUE(bench.machine.abort("t", epoch, bench.now));

  EXPECT_EQ(bench.machine.roll_back("t", id_of("0"), std::nullopt, {}, bench.now).error().code(),
            ErrorCode::kNotFound);
}

TEST(ReceiverMachine, AThirdVersionDoesWhatTheRuleSays) {
  for (const OnThird rule : {OnThird::kWait, OnThird::kRefuse, OnThird::kRecompute}) {
    ReceiverRules rules;
    rules.on_third = rule;
    Bench bench(rules);
    bench.commit("1", {.on_update = OnUpdate::kFinish});
    const Epoch first = bench.machine.handover().epoch;

    const auto third = bench.machine.open_upload("t", make_offer("2"), bench.now);

    if (rule == OnThird::kRefuse) {
      EXPECT_EQ(third.error().code(), ErrorCode::kConflict);
      EXPECT_EQ(third.error().param(), kOnThirdParam);
    } else {
      EXPECT_EQ(third->epoch, 0u);
      EXPECT_EQ(third->evict, rule == OnThird::kRecompute);
    }
    EXPECT_NE(bench.machine.retired(), nullptr);  // nothing has changed
    bench.machine.released(first);
    EXPECT_NE(bench.machine.open_upload("t", make_offer("2"), bench.now)->epoch, 0u);
  }
}

TEST(ReceiverMachine, AHandoverThatFailsLeavesTheOldVersion) {
  Bench bench;
  bench.stage("1");
  ASSERT_EQ(bench.finish(), FinishStep::kCommit);

  bench.machine.not_committed("the files do not fit");

  EXPECT_EQ(bench.serving(), id_of("0"));
  EXPECT_EQ(bench.machine.state(bench.now), UpdateState::kIdle);
  bench.commit("2");
  EXPECT_EQ(bench.machine.serving_set(), 1u);
}

ReceiverRules patch_rules() {
  ReceiverRules rules;
  rules.patch_mode = true;
  rules.max_patch_bytes = 20;
  return rules;
}

UploadOffer make_patch_offer(const Bench& bench, const std::string& text) {
  UploadOffer offer = make_offer(text, true);
  offer.base = bench.serving();
  return offer;
}

TEST(PatchMode, TakesChangesAndWhatIsEqualAndNothingElse) {
  Bench bench(patch_rules());
  EXPECT_EQ(bench.machine.open_upload("t", make_offer("1"), bench.now).error().code(),
            ErrorCode::kTooLarge);
  EXPECT_EQ(bench.machine.open_body("t", bench.now).error().code(), ErrorCode::kTooLarge);
  ASSERT_TRUE(bench.machine.start("t", bench.now));
  EXPECT_EQ(bench.machine.open_path("t", "/x", bench.now).error().code(), ErrorCode::kTooLarge);
  UploadOffer offer = make_patch_offer(bench, "1");
  offer.blocks[0] = {digest("0a")};

  const Epoch epoch = bench.open(offer);
  Staging& staging = bench.staging(epoch);
  EXPECT_EQ(staging.ledger.missing_blocks(), 1u);
  const auto whole = bench.machine.claim(staging, {1, 0}, FrameForm::kWhole, 16, bench.now).value();
  EXPECT_EQ(whole.use, Use::kHash);
  EXPECT_EQ(
      bench.machine.settle(staging, whole, digest("1b"), digest("1b"), bench.now).error().code(),
      ErrorCode::kTooLarge);
  bench.machine.give_up(staging, whole, bench.now);
  EXPECT_EQ(bench.machine.claim(staging, {1, 0}, FrameForm::kChanges, 21, bench.now).error().code(),
            ErrorCode::kTooLarge);
  EXPECT_EQ(bench.machine.claim(staging, {1, 0}, FrameForm::kChanges, 20, bench.now)->use,
            Use::kKeep);
  EXPECT_EQ(bench.serving(), id_of("0"));
}

TEST(PatchMode, WhatIsKeptMayTakeMoreOrLessThanItsPayload) {
  Bench bench(patch_rules());
  const Epoch epoch = bench.open(make_patch_offer(bench, "1"));
  Staging& staging = bench.staging(epoch);
  auto first = bench.machine.claim(staging, {0, 0}, FrameForm::kChanges, 20, bench.now).value();
  EXPECT_TRUE(bench.machine.keep(staging, first, 6));
  auto second = bench.machine.claim(staging, {1, 0}, FrameForm::kChanges, 4, bench.now).value();
  EXPECT_EQ(bench.machine.keep(staging, second, 15).error().code(), ErrorCode::kTooLarge);
  EXPECT_TRUE(bench.machine.keep(staging, second, 14));

  bench.machine.give_up(staging, first, bench.now);
  bench.machine.give_up(staging, second, bench.now);

  EXPECT_EQ(staging.patch_bytes, 0u);
}

TEST(ReceiverMachine, ATiedHeadThatIsAnnouncedAsItsTwinNeedNotCome) {
  const auto layout = std::make_shared<const WeightLayout>(
      WeightLayout::make({{std::string(kEmbeddingName), DType::kBF16, {4, 2}}}).value());
  Resident served;
  const std::vector<std::vector<Digest>> blocks{{digest("old")}};
  served.content =
      make_version_content({{{layout->tensors()[0], merge_block_digests(blocks[0])}}, {}}, blocks);
  served.name.id = served.content->id;
  ReceiverRules rules;
  rules.tied_embeddings = true;
  for (const bool is_twin : {true, false}) {
    ReceiverMachine machine(layout, rules, served);
    UploadOffer offer;
    offer.tensors = {layout->tensors()[0], {std::string(kHeadName), DType::kBF16, {4, 2}}};
    offer.blocks = {{digest("new")}, {digest(is_twin ? "new" : "other")}};

    const auto opening = machine.open_upload("t", offer, Instant());

    ASSERT_TRUE(opening) << opening.error().message();
    EXPECT_EQ(machine.staging(opening->epoch).value()->ledger.missing_blocks(), is_twin ? 1u : 2u);
  }
}

TEST(PatchMode, AnUploadOfWhatServesNeedsNoBase) {
  Bench bench(patch_rules());
  const Epoch epoch = bench.open(make_offer("0", true));
  EXPECT_EQ(bench.staging(epoch).ledger.missing_blocks(), 0u);
  EXPECT_TRUE(bench.seal(epoch));
}

TEST(PatchMode, FinishKeepsNoOldSetAndIsRefused) {
  Bench bench(patch_rules());
  const Epoch epoch = bench.open(make_patch_offer(bench, "1"));
  bench.fill(epoch, "1", FrameForm::kChanges);
  ASSERT_TRUE(bench.seal(epoch));

  const auto step = bench.machine.finish("t", epoch, {.on_update = OnUpdate::kFinish}, bench.now);

  EXPECT_EQ(step.error().code(), ErrorCode::kConflict);
  EXPECT_EQ(bench.machine.state(bench.now), UpdateState::kStaged);
  EXPECT_EQ(bench.machine.retired(), nullptr);
  EXPECT_EQ(bench.machine.begin_read(id_of("0")).error().code(), ErrorCode::kConflict);
}

TEST(PatchMode, ItsOwnReadOfWhatServesHoldsACommitUp) {
  Bench bench(patch_rules());
  const SetIndex reader = bench.machine.begin_own_read(id_of("0")).value();
  const Epoch epoch = bench.open(make_patch_offer(bench, "1"));
  bench.fill(epoch, "1", FrameForm::kChanges);
  ASSERT_TRUE(bench.seal(epoch));
  ASSERT_EQ(bench.finish(), FinishStep::kCommit);
  EXPECT_FALSE(bench.machine.may_hand_over());
  EXPECT_EQ(bench.machine.begin_own_read(id_of("0")).error().code(), ErrorCode::kOverloaded);
  bench.machine.end_read(reader);
  EXPECT_TRUE(bench.machine.may_hand_over());
  bench.machine.committed();

  ASSERT_NE(bench.machine.unconfirmed(), nullptr);  // it may be taken back
  const std::string id = bench.machine.serving().name.id;
  EXPECT_EQ(bench.machine.begin_own_read(id).error().code(), ErrorCode::kOverloaded);
  bench.machine.confirmed();
  EXPECT_TRUE(bench.machine.begin_own_read(id));
  EXPECT_EQ(bench.machine.begin_own_read(id_of("0")).error().code(), ErrorCode::kNotFound);
}

TEST(PatchMode, APatchIsConfirmedBeforeTheNextIsTaken) {
  Bench bench(patch_rules());
  const Epoch epoch = bench.open(make_patch_offer(bench, "1"));
  bench.fill(epoch, "1", FrameForm::kChanges);
  ASSERT_TRUE(bench.seal(epoch));
  const SetIndex reader = bench.machine.try_begin_read_serving().value();
  ASSERT_EQ(bench.finish(), FinishStep::kCommit);
  EXPECT_TRUE(bench.machine.handover().in_place);
  EXPECT_FALSE(bench.machine.may_hand_over());
  EXPECT_FALSE(bench.machine.try_begin_read_serving());
  bench.machine.end_read(reader);
  EXPECT_TRUE(bench.machine.may_hand_over());
  bench.machine.committed();

  ASSERT_NE(bench.machine.unconfirmed(), nullptr);
  EXPECT_EQ(bench.machine.open_upload("t", make_patch_offer(bench, "2"), bench.now)->epoch, 0u);
  bench.machine.confirmed();
  EXPECT_NE(bench.machine.open_upload("t", make_patch_offer(bench, "2"), bench.now)->epoch, 0u);
}

TEST(PatchMode, AWrongPatchIsTakenBackAndMarkedMeanwhile) {
  Bench bench(patch_rules());
  const Epoch epoch = bench.open(make_patch_offer(bench, "1"));
  bench.fill(epoch, "1", FrameForm::kChanges);
  ASSERT_TRUE(bench.seal(epoch));
  ASSERT_EQ(bench.finish({.label = "bad"}), FinishStep::kCommit);
  bench.machine.committed();

  const Handover back = bench.machine.revoked();
  EXPECT_TRUE(bench.machine.serving().name.corrupt);
  EXPECT_EQ(back.version.id, id_of("0"));
  EXPECT_TRUE(back.in_place);
  bench.machine.undone();

  EXPECT_EQ(bench.machine.serving().name, (VersionName{id_of("0"), "default", false}));
  EXPECT_FALSE(bench.machine.finish("t", epoch, {.label = "bad"}, bench.now));
  EXPECT_NE(bench.machine.open_upload("t", make_patch_offer(bench, "2"), bench.now)->epoch, 0u);
}

}  // namespace
}  // namespace weft
