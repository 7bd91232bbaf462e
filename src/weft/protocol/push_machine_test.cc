#include "weft/protocol/push_machine.h"

#include <array>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Step = PushMachine::Step;
using Opened = PushMachine::Opened;
using Counts = PushMachine::Counts;
using Options = PushMachine::Options;

// Entries of three blocks, none and one.
const std::vector<std::uint64_t> kSizes{2 * kBlockBytes + 5, 0, 7};
const std::vector<BlockLedger::Run> kAll{{0, 0, 3}, {2, 0, 1}};
constexpr std::uint64_t kTotal = 2 * kBlockBytes + 12;

Error error(ErrorCode code) {
  return {code, "told"};
}

// A machine that was brought to a step by calls that went well.
PushMachine at(Step step, Options options = {}) {
  PushMachine machine(kSizes, options);
  if (step == Step::kAskServing) return machine;
  machine.serving(PushMachine::Serving{"blake3:old", "i"});
  if (step == Step::kOpen) return machine;
  machine.opened(Opened{"u-1", 0, kAll});
  if (step == Step::kSend) return machine;
  EXPECT_EQ(machine.take(kTotal).size(), 4u);
  machine.sent(Counts{4, 0, 0}, kTotal);
  if (step == Step::kSeal) return machine;
  machine.sealed(std::string("blake3:new"));
  return machine;
}

// The answer to the step the machine is at.
void fail_with(PushMachine& machine, const Error& error,
               std::optional<milliseconds> retry_after = {}) {
  switch (machine.step()) {
    case Step::kOpen:
      return machine.opened(error, retry_after);
    case Step::kSend: {
      const auto batch = machine.take(1);
      ASSERT_EQ(batch.size(), 1u);
      return machine.sent(error, kBlockBytes, retry_after);
    }
    case Step::kSeal:
      return machine.sealed(error, retry_after);
    case Step::kCommit:
      return machine.committed(error, retry_after);
    default:
      FAIL();
  }
}

TEST(PushMachine, GoesFromTheFirstQuestionToTheCommit) {
  PushMachine machine = at(Step::kCommit);
  EXPECT_EQ(machine.step(), Step::kCommit);
  EXPECT_EQ(machine.id(), "blake3:new");
  EXPECT_EQ(machine.verified_bytes(), kTotal);

  machine.committed(std::string("blake3:new"));

  EXPECT_EQ(machine.step(), Step::kDone);
  EXPECT_EQ(machine.resumed(), 0u);
}

TEST(PushMachine, WithoutCommitIsDoneWhenSealed) {
  EXPECT_EQ(at(Step::kCommit, {.commit = false}).step(), Step::kDone);
}

// What each refusal leads to, at each step. "again": waits, then the same call; "ask": waits, then
// asks what is served and opens again; "full": opens again without the base; "drop": drops the
// upload and fails; "fail".
struct Row {
  ErrorCode code;
  std::array<const char*, 4> then;  // at kOpen, kSend, kSeal, kCommit
};
constexpr std::array<Row, 17> kTable = {{
    {ErrorCode::kInvalidArgument, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kUnauthenticated, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kForbidden, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kNotFound, {"fail", "ask", "ask", "ask"}},
    {ErrorCode::kMethodNotAllowed, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kConflict, {"fail", "ask", "ask", "ask"}},
    {ErrorCode::kPreconditionFailed, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kTooLarge, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kRangeInvalid, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kUnsupported, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kCorrupt, {"fail", "ask", "ask", "ask"}},
    {ErrorCode::kOverloaded, {"ask", "ask", "again", "again"}},
    {ErrorCode::kNoSpace, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kDisconnected, {"ask", "ask", "again", "again"}},
    {ErrorCode::kDeadline, {"ask", "ask", "again", "again"}},
    {ErrorCode::kCancelled, {"fail", "drop", "drop", "drop"}},
    {ErrorCode::kInternal, {"fail", "drop", "drop", "drop"}},
}};

std::string what_follows(PushMachine& machine) {
  const Step before = machine.step();
  if (machine.step() == Step::kFailed) return "fail";
  if (machine.step() == Step::kDrop) {
    machine.dropped();
    return machine.step() == Step::kFailed ? "drop" : "anew";
  }
  EXPECT_EQ(before, Step::kWait);
  EXPECT_EQ(machine.wait(), milliseconds(100));
  machine.waited();
  return machine.step() == Step::kAskServing ? "ask" : "again";
}

TEST(PushMachine, EveryRefusalAtEveryStep) {
  constexpr std::array<Step, 4> kSteps{Step::kOpen, Step::kSend, Step::kSeal, Step::kCommit};
  for (const Row& row : kTable) {
    for (std::size_t i = 0; i < kSteps.size(); ++i) {
      PushMachine machine = at(kSteps[i]);
      fail_with(machine, error(row.code));
      EXPECT_EQ(what_follows(machine), std::string(row.then[i]))
          << error_traits(row.code).name << " at step " << static_cast<int>(kSteps[i]);
      if (row.then[i] == std::string("again")) {
        EXPECT_EQ(machine.step(), kSteps[i]);
      }
    }
  }
}

TEST(PushMachine, ABaseThatIsNotThereOrConvertedMeansToSendInFull) {
  for (const ErrorCode code : {ErrorCode::kNotFound, ErrorCode::kConflict}) {
    PushMachine machine = at(Step::kOpen, {.base = true});
    EXPECT_TRUE(machine.with_base());

    machine.opened(error(code));

    EXPECT_EQ(machine.step(), Step::kOpen);
    EXPECT_FALSE(machine.with_base());
    machine.opened(error(code));
    EXPECT_EQ(machine.step(), Step::kFailed);
  }
}

TEST(PushMachine, APartialPushCannotDoWithoutItsBase) {
  PushMachine machine = at(Step::kOpen, {.base = true, .partial = true});

  machine.opened(error(ErrorCode::kNotFound));

  EXPECT_EQ(machine.step(), Step::kFailed);
}

TEST(PushMachine, SendsOnlyWhatIsMissingInBatchesOfTheSizeAskedFor) {
  PushMachine machine = at(Step::kOpen);
  machine.opened(Opened{"u-1", kBlockBytes, {{2, 0, 1}, {0, 1, 2}}});
  EXPECT_EQ(machine.skipped_bytes(), kBlockBytes);
  EXPECT_EQ(machine.unsent_bytes(), kBlockBytes + 12);

  EXPECT_THAT(machine.take(kBlockBytes + 5), ElementsAre(BlockPlace{0, 1}, BlockPlace{0, 2}));
  EXPECT_THAT(machine.take(1), ElementsAre(BlockPlace{2, 0}));
  EXPECT_THAT(machine.take(1), IsEmpty());
  machine.sent(Counts{1, 0, 0}, 7);
  EXPECT_EQ(machine.step(), Step::kSend);
  machine.sent(Counts{2, 0, 0}, kBlockBytes + 5);

  EXPECT_EQ(machine.step(), Step::kSeal);
  EXPECT_EQ(machine.verified_bytes(), kTotal);
}

TEST(PushMachine, NothingMissingIsSealedAtOnce) {
  PushMachine machine = at(Step::kOpen);
  machine.opened(Opened{"u-1", kTotal, {}});
  EXPECT_EQ(machine.step(), Step::kSeal);
}

TEST(PushMachine, MissingBlocksThatAreNoneOfOursAreAnError) {
  const std::vector<std::vector<BlockLedger::Run>> bad{{{3, 0, 1}},
                                                       {{1, 0, 1}},
                                                       {{0, 0, 4}},
                                                       {{0, 3, 1}},
                                                       {{0, 1, ~0ull}},
                                                       {{0, ~0ull, 2}},
                                                       {{0, 0, 2}, {0, 1, 1}},
                                                       {{0, 0, 3}, {0, 0, 3}}};
  for (const auto& missing : bad) {
    PushMachine machine = at(Step::kOpen);
    machine.opened(Opened{"u-1", 0, missing});
    EXPECT_EQ(machine.step(), Step::kFailed);
    EXPECT_EQ(machine.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(PushMachine, AFailedBatchEndsTheRoundWhenTheOthersAreBack) {
  PushMachine machine = at(Step::kSend);
  machine.take(1);
  machine.take(1);

  machine.sent(error(ErrorCode::kDisconnected), kBlockBytes);
  EXPECT_EQ(machine.step(), Step::kSend);
  EXPECT_THAT(machine.take(1), IsEmpty());
  machine.sent(Counts{1, 0, 0}, kBlockBytes);

  EXPECT_EQ(machine.step(), Step::kWait);
  EXPECT_EQ(machine.verified_bytes(), kBlockBytes);
}

TEST(PushMachine, ARefusalThatCannotBeMendedCountsBeforeACut) {
  PushMachine machine = at(Step::kSend);
  machine.take(1);
  machine.take(1);
  machine.sent(error(ErrorCode::kDisconnected), 0);
  machine.sent(error(ErrorCode::kForbidden), 0);
  ASSERT_EQ(machine.step(), Step::kDrop);
  machine.dropped();
  EXPECT_EQ(machine.error().code(), ErrorCode::kForbidden);
}

TEST(PushMachine, BusyBlocksAreAskedForAgain) {
  PushMachine machine = at(Step::kSend);
  machine.take(kTotal);
  machine.sent(Counts{3, 0, 1}, kTotal);
  EXPECT_EQ(what_follows(machine), "ask");
}

TEST(PushMachine, BusyBlocksAreWaitedForBeyondTheTries) {
  PushMachine machine = at(Step::kSend, {.retries = 2});
  for (int i = 0; i < 10; ++i) {
    machine.take(kTotal);
    machine.sent(Counts{3, 0, 1}, kTotal);
    ASSERT_EQ(machine.step(), Step::kWait);
    machine.waited();
    machine.serving(PushMachine::Serving{"blake3:old", "i"});
    machine.opened(Opened{"u-1", 0, kAll});
  }
  EXPECT_EQ(machine.step(), Step::kSend);
}

TEST(PushMachine, WhatAnotherConnectionWritesIsNotSentBesideItOverAndOver) {
  PushMachine machine = at(Step::kSend);
  const auto send = [&](Counts counts) {
    const std::size_t blocks = machine.take(kTotal).size();
    machine.sent(counts, blocks == 1 ? kBlockBytes : kTotal);
    if (machine.step() == Step::kWait) {
      machine.waited();
      machine.serving(PushMachine::Serving{"blake3:old", "i"});
    }
    machine.opened(Opened{"u-1", 0, kAll});
    return blocks;
  };
  EXPECT_EQ(send({0, 0, 4}), 4u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(send({0, 0, 1}), 1u);

  EXPECT_EQ(send({1, 0, 0}), 1u);  // it is free now
  EXPECT_EQ(machine.take(kTotal).size(), 4u);
}

TEST(PushMachine, AWriterThatFoundItsOnlyBlockFreeIsNotDoneBeforeTheRest) {
  PushMachine machine = at(Step::kOpen, {.writer = 1, .writers = 2});
  machine.opened(Opened{"u-1", 0, kAll});
  machine.sent(Counts{1, 0, machine.take(kTotal).size() - 1}, 12);
  machine.waited();
  machine.serving(PushMachine::Serving{"blake3:old", "i"});
  machine.opened(Opened{"u-1", 0, kAll});
  ASSERT_EQ(machine.take(kTotal).size(), 1u);

  machine.sent(Counts{1, 0, 0}, 5);

  EXPECT_EQ(machine.step(), Step::kOpen);
}

TEST(PushMachine, OnlyTriesThatBringNothingAreCounted) {
  PushMachine machine = at(Step::kSend, {.retries = 2});
  std::uint64_t verified = 0;
  const auto cut = [&] {
    fail_with(machine, error(ErrorCode::kDisconnected));
    if (machine.step() != Step::kWait) return;
    machine.waited();
    machine.serving(PushMachine::Serving{"blake3:old", "i"});
    machine.opened(Opened{"u-1", verified, kAll});
  };
  for (int i = 0; i < 10; ++i) {
    ++verified;
    cut();
    EXPECT_EQ(machine.step(), Step::kSend);
  }
  cut();
  cut();
  EXPECT_EQ(machine.step(), Step::kSend);
  cut();
  EXPECT_EQ(machine.step(), Step::kFailed);
  EXPECT_EQ(machine.error().code(), ErrorCode::kDisconnected);
  EXPECT_EQ(machine.resumed(), 12u);
}

TEST(PushMachine, WaitsLongerEachTimeUpToFiveSeconds) {
  PushMachine machine = at(Step::kSeal, {.retries = 10});
  std::vector<long> waits;
  for (int i = 0; i < 8; ++i) {
    machine.sealed(error(ErrorCode::kDeadline));
    waits.push_back(machine.wait().count());
    machine.waited();
  }
  EXPECT_THAT(waits, ElementsAre(100, 200, 400, 800, 1600, 3200, 5000, 5000));
}

TEST(PushMachine, AsksAgainBeforeRetryAfterIsOverAndStopsWhenPatienceIs) {
  PushMachine machine = at(Step::kOpen, {.retries = 0, .patience = seconds(2)});
  std::vector<long> waits;
  while (machine.step() == Step::kOpen) {
    machine.opened(error(ErrorCode::kConflict), milliseconds(500));
    waits.push_back(machine.wait().count());
    if (machine.step() != Step::kWait) break;
    machine.waited();
    machine.serving(std::nullopt);
  }
  EXPECT_THAT(waits, ElementsAre(100, 200, 400, 500, 500, 500));
  EXPECT_EQ(machine.step(), Step::kFailed);
}

TEST(PushMachine, AnotherVersionThatWasCommittedMeanwhileIsNotUndone) {
  PushMachine machine = at(Step::kCommit);
  machine.committed(error(ErrorCode::kConflict));
  machine.waited();

  machine.serving(PushMachine::Serving{"blake3:other", "i"});

  ASSERT_EQ(machine.step(), Step::kDrop);
  machine.dropped();
  EXPECT_EQ(machine.step(), Step::kFailed);
  EXPECT_THAT(machine.error().message(), HasSubstr("blake3:other"));
}

TEST(PushMachine, ARestartedServerIsSentEverythingAgain) {
  PushMachine machine = at(Step::kSend);
  fail_with(machine, error(ErrorCode::kDisconnected));
  machine.waited();
  machine.serving(PushMachine::Serving{"blake3:from the folder", "j"});
  EXPECT_EQ(machine.step(), Step::kOpen);
  machine.opened(Opened{"v-1", 0, kAll});
  EXPECT_EQ(machine.unsent_bytes(), kTotal);
}

TEST(PushMachine, AnUploadThatIsForgottenMeansARestartToo) {
  PushMachine machine = at(Step::kSeal);
  machine.sealed(error(ErrorCode::kNotFound));
  machine.waited();
  machine.serving(PushMachine::Serving{"blake3:from the folder", ""});
  EXPECT_EQ(machine.step(), Step::kOpen);
}

TEST(PushMachine, AServerThatForgetsEachUploadIsGivenUp) {
  PushMachine machine = at(Step::kSend, {.retries = 2});
  for (int i = 0; i < 3; ++i) {
    fail_with(machine, error(ErrorCode::kNotFound));
    machine.waited();
    machine.serving(std::nullopt);
    machine.opened(Opened{"v-" + std::to_string(i), 1, kAll});
  }
  ASSERT_EQ(machine.step(), Step::kDrop);
  EXPECT_EQ(machine.upload(), "v-2");
  machine.dropped();
  ASSERT_EQ(machine.step(), Step::kFailed);
  EXPECT_THAT(machine.error().message(), HasSubstr("forgot"));
}

TEST(PushMachine, ACommitWhoseAnswerWasLostIsSeenInWhatIsServed) {
  PushMachine machine = at(Step::kCommit);
  machine.committed(error(ErrorCode::kNotFound));
  machine.waited();
  machine.serving(PushMachine::Serving{"blake3:new", "j"});
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PushMachine, WithoutDigestsAnOldUploadIsDroppedOnce) {
  PushMachine machine = at(Step::kOpen, {.announced = false});

  machine.opened(Opened{"u-1", 7, {{0, 0, 3}}});
  EXPECT_EQ(machine.step(), Step::kDrop);
  EXPECT_EQ(machine.upload(), "u-1");
  machine.dropped();
  EXPECT_EQ(machine.step(), Step::kOpen);
  machine.opened(Opened{"u-2", 0, kAll});
  fail_with(machine, error(ErrorCode::kDisconnected));
  machine.waited();
  machine.serving(std::nullopt);
  machine.opened(Opened{"u-2", 7, {{0, 0, 3}}});  // this one is ours

  EXPECT_EQ(machine.step(), Step::kSend);
}

TEST(PushMachine, WithoutDigestsAnOldUploadIsDroppedUntilItIsGone) {
  PushMachine machine = at(Step::kOpen, {.retries = 2, .announced = false});
  for (int tries = 0; tries < 2; ++tries) {
    machine.opened(Opened{"u-1", 7, {{0, 0, 3}}});
    ASSERT_EQ(machine.step(), Step::kDrop);
    machine.dropped();  // the call was lost
  }

  machine.opened(Opened{"u-1", 7, {{0, 0, 3}}});

  EXPECT_EQ(machine.step(), Step::kFailed);
  EXPECT_EQ(machine.error().code(), ErrorCode::kConflict);
}

TEST(PushMachine, ACommitThatIsAlwaysRefusedIsGivenUp) {
  PushMachine machine = at(Step::kCommit, {.retries = 3});
  unsigned commits = 0;
  for (; machine.step() == Step::kCommit && commits < 100; ++commits) {
    machine.committed(error(ErrorCode::kConflict));
    if (machine.step() != Step::kWait) break;
    machine.waited();
    machine.serving(std::nullopt);
    machine.opened(Opened{"u-1", kTotal, {}});
    machine.sealed(std::string("blake3:new"));
  }

  EXPECT_EQ(commits, 4u);
  EXPECT_EQ(machine.step(), Step::kDrop);
}

TEST(PushMachine, ARefusedCommitOfWhatIsServedAlreadyIsNotTakenForDone) {
  PushMachine machine(kSizes, {.retries = 2});
  const PushMachine::Serving same{"blake3:same", "i"};
  machine.serving(same);
  for (unsigned commits = 0; commits < 3; ++commits) {
    machine.opened(Opened{"u-1", kTotal, {}});
    machine.sealed(std::string("blake3:same"));
    ASSERT_EQ(machine.step(), Step::kCommit);
    machine.committed(error(ErrorCode::kConflict));
    if (machine.step() != Step::kWait) break;
    machine.waited();
    machine.serving(same);
  }

  EXPECT_EQ(machine.step(), Step::kDrop);
}

TEST(PushMachine, AWriterIsDoneWhenItsShareIsThere) {
  PushMachine machine = at(Step::kSend, {.writer = 1, .writers = 2});
  EXPECT_THAT(machine.take(kTotal), ElementsAre(BlockPlace{0, 2}, BlockPlace{2, 0}));
  machine.sent(error(ErrorCode::kDisconnected), 12);
  machine.waited();
  machine.serving(std::nullopt);
  machine.opened(Opened{"u-1", 0, {{0, 0, 3}}});
  EXPECT_THAT(machine.take(kTotal), ElementsAre(BlockPlace{0, 2}));
  machine.sent(Counts{1, 0, 0}, 5);
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PushMachine, AWriterWhoseLastAnswerWasLostMayFindTheVersionServed) {
  PushMachine machine = at(Step::kSend, {.writer = 1, .writers = 2});
  machine.take(kTotal);
  machine.sent(error(ErrorCode::kDisconnected), 12);
  machine.waited();
  machine.serving(PushMachine::Serving{"blake3:new", "i"});
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PushMachine, AWriterWithNothingToSendIsDone) {
  PushMachine machine = at(Step::kOpen, {.writer = 1, .writers = 2});
  machine.opened(Opened{"u-1", 0, {{0, 0, 2}}});
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PushMachine, TheFirstWriterWaitsForTheOthersWhileTheyGetOn) {
  PushMachine machine = at(Step::kSend, {.retries = 2, .writer = 0, .writers = 2});
  EXPECT_THAT(machine.take(kTotal), ElementsAre(BlockPlace{0, 0}, BlockPlace{0, 1}));
  machine.sent(Counts{2, 0, 0}, 2 * kBlockBytes);
  for (std::uint64_t verified = 0; verified < 10; ++verified) {
    ASSERT_EQ(machine.step(), Step::kOpen);
    machine.opened(Opened{"u-1", 2 * kBlockBytes + verified, {{0, 2, 1}, {2, 0, 1}}});
    ASSERT_EQ(machine.step(), Step::kWait);
    machine.waited();
    machine.serving(std::nullopt);
  }
  machine.opened(Opened{"u-1", kTotal, {}});
  EXPECT_EQ(machine.step(), Step::kSeal);
}

TEST(PushMachine, TheFirstWriterSendsWhatTheOthersLeave) {
  PushMachine machine = at(Step::kSend, {.retries = 2, .writer = 0, .writers = 2});
  machine.take(kTotal);
  machine.sent(Counts{2, 0, 0}, 2 * kBlockBytes);
  const Opened left{"u-1", 2 * kBlockBytes, {{0, 2, 1}, {2, 0, 1}}};
  machine.opened(left);
  for (int polls = 0; machine.step() == Step::kWait && polls < 10; ++polls) {
    machine.waited();
    machine.serving(std::nullopt);
    machine.opened(left);
  }
  EXPECT_THAT(machine.take(kTotal), ElementsAre(BlockPlace{0, 2}, BlockPlace{2, 0}));
  machine.sent(Counts{2, 0, 0}, 12);
  EXPECT_EQ(machine.step(), Step::kSeal);
}

TEST(PushMachine, ASharedUploadIsNotDropped) {
  PushMachine machine = at(Step::kSend, {.writer = 0, .writers = 2});
  fail_with(machine, error(ErrorCode::kInvalidArgument));
  EXPECT_EQ(machine.step(), Step::kFailed);
}

TEST(PushMachine, GivingUpDropsTheUpload) {
  PushMachine machine = at(Step::kSend);
  machine.give_up(error(ErrorCode::kCorrupt));
  EXPECT_EQ(machine.step(), Step::kDrop);
  machine.dropped();
  EXPECT_EQ(machine.error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace weft
