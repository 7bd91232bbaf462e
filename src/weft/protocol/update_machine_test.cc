#include "weft/protocol/update_machine.h"

#include <array>
#include <functional>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "weft/protocol/block_ledger.h"

namespace weft {
namespace {

using std::chrono::seconds;
using FinishStep = UpdateMachine::FinishStep;

constexpr seconds kLease{300};
const Digest kSkeleton = digest_of(std::as_bytes(std::span("one")));
const Digest kOther = digest_of(std::as_bytes(std::span("two")));

// A machine that owner `a` has brought into a state, at time 0.
struct Walk {
  UpdateMachine machine{kLease};
  Epoch epoch = 0;
  Instant now{};

  enum From { kIdle, kOpen, kUpload, kBody, kStaged, kCommitting, kCommitted };
  explicit Walk(From from) {
    if (from == kIdle) return;
    if (from == kOpen) {
      machine.start("a", now).value();
      return;
    }
    if (from == kBody) {
      epoch = machine.open_body("a", now).value();
      return;
    }
    epoch = machine.open_upload("a", kSkeleton, false, now).value().epoch;
    if (from == kUpload) return;
    machine.seal(epoch, 0, now).value();
    if (from == kStaged) return;
    EXPECT_EQ(machine.finish("a", "x", now).value(), FinishStep::kCommit);
    if (from == kCommitted) machine.committed();
  }
};

template <typename T>
bool ok(const Result<T>& result) {
  return result.has_value();
}

struct Row {
  const char* event;
  std::function<bool(Walk&)> run;
  // The state afterwards, from each of Walk::From; "-": refused, and nothing changed.
  std::array<const char*, 7> after;
};

// docs/protocol.md has this table.
const std::array<Row, 26> kTable = {{
    {"start",
     [](Walk& w) { return ok(w.machine.start("a", w.now)); },
     {"open", "open", "-", "-", "-", "-", "open"}},
    {"start by another",
     [](Walk& w) { return ok(w.machine.start("b", w.now)); },
     {"open", "-", "-", "-", "-", "-", "open"}},
    {"upload",
     [](Walk& w) { return ok(w.machine.open_upload("a", kSkeleton, false, w.now)); },
     {"staging", "staging", "staging", "-", "staged", "-", "staging"}},
    {"other upload",
     [](Walk& w) { return ok(w.machine.open_upload("a", kOther, false, w.now)); },
     {"staging", "staging", "-", "-", "-", "-", "staging"}},
    {"other upload that replaces",
     [](Walk& w) { return ok(w.machine.open_upload("a", kOther, true, w.now)); },
     {"staging", "staging", "staging", "-", "staging", "-", "staging"}},
    {"upload by another",
     [](Walk& w) { return ok(w.machine.open_upload("b", kSkeleton, true, w.now)); },
     {"staging", "-", "-", "-", "-", "-", "staging"}},
    {"body",
     [](Walk& w) { return ok(w.machine.open_body("a", w.now)); },
     {"staging", "staging", "-", "-", "-", "-", "staging"}},
    {"body by another",
     [](Walk& w) { return ok(w.machine.open_body("b", w.now)); },
     {"staging", "-", "-", "-", "-", "-", "staging"}},
    {"update path",
     [](Walk& w) { return ok(w.machine.open_path("a", w.now)); },
     {"-", "staging", "-", "-", "staging", "-", "-"}},
    {"update",
     [](Walk& w) { return ok(w.machine.update("a", w.now)); },
     {"-", "open", "staging", "-", "staged", "-", "-"}},
    {"update by another",
     [](Walk& w) { return ok(w.machine.update("b", w.now)); },
     {"-", "-", "-", "-", "-", "-", "-"}},
    {"finish",
     [](Walk& w) { return ok(w.machine.finish("a", "x", w.now)); },
     {"-", "idle", "-", "-", "committing", "committing", "idle"}},
    {"other finish",
     [](Walk& w) { return ok(w.machine.finish("a", "y", w.now)); },
     {"-", "idle", "-", "-", "committing", "-", "-"}},
    {"finish by another",
     [](Walk& w) { return ok(w.machine.finish("b", "x", w.now)); },
     {"-", "-", "-", "-", "-", "-", "-"}},
    {"abort",
     [](Walk& w) { return ok(w.machine.abort("a", w.epoch, w.now)); },
     {"-", "-", "idle", "idle", "idle", "-", "-"}},
    {"abort by another",
     [](Walk& w) { return ok(w.machine.abort("b", w.epoch, w.now)); },
     {"-", "-", "-", "-", "-", "-", "-"}},
    {"write",
     [](Walk& w) { return ok(w.machine.begin_write(w.epoch, w.now)); },
     {"-", "-", "staging", "staging", "-", "-", "-"}},
    {"seal, blocks missing",
     [](Walk& w) { return ok(w.machine.seal(w.epoch, 1, w.now)); },
     {"-", "-", "-", "-", "staged", "committing", "-"}},
    {"seal",
     [](Walk& w) { return ok(w.machine.seal(w.epoch, 0, w.now)); },
     {"-", "-", "staged", "staged", "staged", "committing", "-"}},
    {"failure",
     [](Walk& w) { return w.machine.fail(w.epoch, "test"), true; },
     {"idle", "open", "idle", "idle", "idle", "committing", "idle"}},
    {"source refused",
     [](Walk& w) { return w.machine.refuse("a", "test", w.now), true; },
     {"idle", "idle", "staging", "staging", "idle", "committing", "idle"}},
    {"roll back",
     [](Walk& w) { return ok(w.machine.roll_back("a", "old", w.now)); },
     {"committing", "-", "-", "-", "-", "-", "committing"}},
    {"upload while memory is read",
     [](Walk& w) {
       w.machine.close_gate(true);
       return ok(w.machine.open_upload("a", kSkeleton, false, w.now));
     },
     {"idle", "open", "staging", "-", "staged", "-", "idle"}},
    {"body while memory is read",
     [](Walk& w) {
       w.machine.close_gate(true);
       return ok(w.machine.open_body("a", w.now));
     },
     {"idle", "open", "-", "-", "-", "-", "idle"}},
    {"lease over",
     [](Walk& w) { return w.now += kLease, true; },
     {"idle", "idle", "idle", "idle", "idle", "committing", "idle"}},
    {"shutdown, then start",
     [](Walk& w) { return w.machine.shutdown(), ok(w.machine.start("a", w.now)); },
     {"-", "-", "-", "-", "-", "-", "-"}},
}};

TEST(UpdateMachine, EveryEventInEveryState) {
  for (const Row& row : kTable) {
    for (int from = 0; from < 7; ++from) {
      Walk walk(static_cast<Walk::From>(from));
      const std::string before(update_state_name(walk.machine.state(walk.now)));

      const bool accepted = row.run(walk);

      const std::string after(update_state_name(walk.machine.state(walk.now)));
      const std::string expected = row.after[static_cast<std::size_t>(from)];
      EXPECT_EQ(accepted, expected != "-") << row.event << " in " << before << " (" << from << ")";
      EXPECT_EQ(after, expected == "-" ? before : expected) << row.event << " (" << from << ")";
    }
  }
}

TEST(UpdateMachine, TheLoserIsToldWhoHoldsItAndHowLong) {
  Walk walk(Walk::kOpen);
  walk.now += seconds(100);

  const Error error = walk.machine.start("b", walk.now).error();

  EXPECT_EQ(error.code(), ErrorCode::kConflict);
  EXPECT_NE(error.message().find("`a`"), std::string::npos) << error.message();
  EXPECT_NE(error.message().find("200 s"), std::string::npos) << error.message();
}

TEST(UpdateMachine, BytesRenewTheLease) {
  Walk walk(Walk::kUpload);
  walk.now += kLease - seconds(1);
  ASSERT_TRUE(walk.machine.touch(walk.epoch, walk.now));

  walk.now += kLease - seconds(1);

  EXPECT_EQ(walk.machine.state(walk.now), UpdateState::kStaging);
}

TEST(UpdateMachine, ACallInProgressHoldsTheLease) {
  Walk walk(Walk::kUpload);
  ASSERT_TRUE(walk.machine.hold(walk.epoch, walk.now));
  walk.now += 10 * kLease;
  EXPECT_EQ(walk.machine.state(walk.now), UpdateState::kStaging);

  walk.machine.release(walk.epoch, walk.now);

  EXPECT_EQ(walk.machine.state(walk.now + kLease), UpdateState::kIdle);
}

TEST(UpdateMachine, AFailedUpdateIsClosedAndFinishSaysWhy) {
  Walk walk(Walk::kUpload);
  walk.machine.fail(walk.epoch, "no tensor `x`");

  const Error error = walk.machine.finish("a", std::nullopt, walk.now).error();

  EXPECT_EQ(error.code(), ErrorCode::kConflict);
  EXPECT_NE(error.message().find("no tensor `x`"), std::string::npos) << error.message();
  EXPECT_TRUE(walk.machine.start("a", walk.now));
}

TEST(UpdateMachine, TheSameFinishAgainIsARepeatUntilTheNextStart) {
  Walk walk(Walk::kCommitted);
  EXPECT_EQ(walk.machine.finish("a", "x", walk.now).value(), FinishStep::kRepeat);
  EXPECT_EQ(walk.machine.finish("a", "x", walk.now).value(), FinishStep::kRepeat);

  ASSERT_TRUE(walk.machine.start("b", walk.now));

  EXPECT_FALSE(walk.machine.finish("a", "x", walk.now));
}

TEST(UpdateMachine, FinishWhileItIsDoneJoins) {
  Walk walk(Walk::kCommitting);

  EXPECT_EQ(walk.machine.finish("a", "x", walk.now).value(), FinishStep::kJoin);
}

TEST(UpdateMachine, FinishWithNothingStagedMovesTheLabelOnce) {
  Walk walk(Walk::kOpen);
  EXPECT_EQ(walk.machine.finish("a", "x", walk.now).value(), FinishStep::kRename);
  EXPECT_EQ(walk.machine.finish("a", "x", walk.now).value(), FinishStep::kRepeat);

  // As vLLM: a finish without start that would do nothing is out of order.
  ASSERT_TRUE(walk.machine.start("a", walk.now));
  EXPECT_EQ(walk.machine.finish("a", std::nullopt, walk.now).value(), FinishStep::kRename);
  EXPECT_FALSE(walk.machine.finish("a", std::nullopt, walk.now));
}

TEST(UpdateMachine, ALateWriterIsFencedAndHoldsTheMemoryUntilItIsGone) {
  Walk walk(Walk::kUpload);
  const Epoch old = walk.epoch;
  ASSERT_TRUE(walk.machine.begin_write(old, walk.now));
  walk.now += kLease;

  const auto too_early = walk.machine.open_body("b", walk.now);
  EXPECT_EQ(too_early.error().code(), ErrorCode::kOverloaded);
  EXPECT_EQ(walk.machine.touch(old, walk.now).error().code(), ErrorCode::kConflict);
  walk.machine.end_write(old, walk.now);

  const auto epoch = walk.machine.open_body("b", walk.now);
  ASSERT_TRUE(epoch);
  EXPECT_GT(*epoch, old);
  EXPECT_FALSE(walk.machine.begin_write(old, walk.now));
}

TEST(UpdateMachine, AnAbortMayBeRepeated) {
  Walk walk(Walk::kUpload);
  ASSERT_TRUE(walk.machine.abort("a", walk.epoch, walk.now));

  EXPECT_TRUE(walk.machine.abort("a", walk.epoch, walk.now));
  EXPECT_FALSE(walk.machine.abort("a", walk.epoch + 1, walk.now));
}

TEST(UpdateMachine, CallsOnTheEpochJustCommittedAreRepeats) {
  Walk walk(Walk::kCommitted);
  EXPECT_TRUE(walk.machine.check("a", walk.epoch, walk.now));

  ASSERT_TRUE(walk.machine.start("a", walk.now));
  EXPECT_FALSE(walk.machine.check("a", walk.epoch, walk.now));  // not to finish the next update
  ASSERT_TRUE(walk.machine.open_body("a", walk.now));

  EXPECT_FALSE(walk.machine.check("a", walk.epoch, walk.now));
}

TEST(UpdateMachine, ACallThatWaitsForMemoryRenewsTheLease) {
  Walk walk(Walk::kOpen);
  walk.machine.close_gate(true);
  walk.now += kLease - seconds(1);
  EXPECT_EQ(walk.machine.open_path("a", walk.now).value(), 0u);
  walk.now += kLease - seconds(1);
  EXPECT_EQ(walk.machine.state(walk.now), UpdateState::kOpen);
}

TEST(UpdateMachine, ARollbackIsACommitOfItsOwn) {
  Walk walk(Walk::kCommitted);
  ASSERT_EQ(walk.machine.roll_back("b", "old", walk.now).value(), FinishStep::kCommit);
  EXPECT_EQ(walk.machine.roll_back("b", "old", walk.now).value(), FinishStep::kJoin);
  EXPECT_FALSE(walk.machine.roll_back("b", "other", walk.now));
  EXPECT_FALSE(walk.machine.finish("b", std::nullopt, walk.now));
  walk.machine.committed();
  EXPECT_FALSE(walk.machine.finish("a", "x", walk.now)) << "the commit before is no success now";
  EXPECT_FALSE(walk.machine.check("a", walk.epoch, walk.now));
}

TEST(UpdateMachine, WhatCouldNotTakeOverIsClosedAndSaysWhy) {
  Walk walk(Walk::kCommitting);
  walk.machine.not_committed("its tokenizer is broken");
  const Error error = walk.machine.finish("a", "x", walk.now).error();
  EXPECT_NE(error.message().find("its tokenizer is broken"), std::string::npos) << error.message();
  EXPECT_TRUE(walk.machine.start("a", walk.now));
}

TEST(UpdateMachine, WhatWasTakenBackIsNoSuccessWhenItIsRepeated) {
  Walk walk(Walk::kCommitted);
  walk.machine.take_back("it was corrupt");
  EXPECT_FALSE(walk.machine.finish("a", "x", walk.now));
  EXPECT_FALSE(walk.machine.check("a", walk.epoch, walk.now));
}

// Random schedules against the rules: only a complete set is committed, each once, by its owner,
// and no two stagings share memory.
class Schedule {
 public:
  explicit Schedule(unsigned seed) : random_(seed) {}

  void step() {
    now_ += seconds(random_() % 8 == 0 ? 200 : 1);
    const std::string owner = random_() % 2 == 0 ? "a" : "b";
    switch (random_() % 9) {
      case 0:
        static_cast<void>(machine_.start(owner, now_));
        break;
      case 1:
        open(owner);
        break;
      case 2:
      case 3:
        begin_block();
        break;
      case 4:
        end_block();
        break;
      case 5:
        if (machine_.seal(epoch_, ledger_.missing_blocks(), now_)) {
          EXPECT_TRUE(epoch_ == committed_ || ledger_.missing_blocks() == 0);
        }
        break;
      case 6:
        finish(owner);
        break;
      case 7:
        if (random_() % 4 == 0) machine_.fail(epoch_, "chance");
        break;
      default:
        if (machine_.state(now_) == UpdateState::kCommitting) commit();
    }
  }

  unsigned commits() const { return static_cast<unsigned>(done_.size()); }

 private:
  static BlockLedger empty_ledger() {
    const std::array<std::uint64_t, 2> sizes{5, 7};
    return BlockLedger(sizes);
  }

  void open(const std::string& owner) {
    const auto opened =
        machine_.open_upload(owner, random_() % 2 == 0 ? kSkeleton : kOther, false, now_);
    if (!opened || opened->resumed) return;
    EXPECT_TRUE(writing_.empty()) << "memory with a writer was given away";
    EXPECT_GT(opened->epoch, epoch_);
    epoch_ = opened->epoch;
    ledger_ = empty_ledger();
  }
  void begin_block() {
    const std::uint64_t tensor = random_() % 2;
    if (!machine_.touch(epoch_, now_) || ledger_.claim(tensor, 0) != BlockLedger::Claim::kYours)
      return;
    EXPECT_TRUE(machine_.begin_write(epoch_, now_));
    writing_.insert({epoch_, tensor});
  }
  void end_block() {
    if (writing_.empty()) return;
    const auto [epoch, tensor] = *writing_.begin();
    writing_.erase(writing_.begin());
    machine_.end_write(epoch, now_);
    if (epoch != epoch_) return;
    if (random_() % 4 == 0) {
      ledger_.failed(tensor, 0);
    } else {
      ledger_.verified(tensor, 0, kSkeleton);
    }
  }
  void finish(const std::string& owner) {
    const std::string holder = machine_.owner();
    const auto step = machine_.finish(owner, "x", now_);
    if (!step || *step != FinishStep::kCommit) return;
    EXPECT_EQ(owner, holder);
    EXPECT_EQ(ledger_.missing_blocks(), 0u);
    EXPECT_EQ(machine_.epoch(), epoch_);
  }
  void commit() {
    machine_.committed();
    committed_ = epoch_;
    EXPECT_TRUE(done_.insert(epoch_).second) << "committed twice";
    EXPECT_EQ(machine_.committed_epoch(), epoch_);
  }

  std::mt19937 random_;
  Instant now_{};
  UpdateMachine machine_{kLease};
  BlockLedger ledger_ = empty_ledger();
  Epoch epoch_ = 0, committed_ = 0;
  std::set<std::pair<Epoch, std::uint64_t>> writing_;
  std::set<Epoch> done_;
};

TEST(UpdateMachine, RandomSchedulesKeepTheRules) {
  unsigned commits = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Schedule schedule(seed);
    for (int i = 0; i < 1'000; ++i) schedule.step();
    commits += schedule.commits();
  }
  EXPECT_GT(commits, 200u);  // more than one in each
}

}  // namespace
}  // namespace weft
