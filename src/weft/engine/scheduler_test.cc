#include "weft/engine/scheduler.h"

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace weft {
namespace {

constexpr std::uint64_t kPageTokens = 16;

Sequence sequence_of(std::size_t tokens) {
  Sequence sequence;
  sequence.tokens.assign(tokens, 1);
  return sequence;
}

TEST(Scheduler, CutsAPromptToTheBudgetAndGoesOnWithTheNextStep) {
  PagePool pool(8);
  Scheduler scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 20}, pool);
  Sequence first = sequence_of(30);
  Sequence second = sequence_of(5);
  scheduler.add(first);
  scheduler.add(second);

  const auto one = scheduler.schedule(Scheduler::Admission::kAll);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].end, 20u);
  EXPECT_FALSE(one[0].reaches_end());
  scheduler.complete();

  const auto two = scheduler.schedule(Scheduler::Admission::kAll);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].begin, 20u);
  EXPECT_TRUE(two[0].reaches_end());
  EXPECT_EQ(two[1].sequence, &second);
}

TEST(Scheduler, TakesThePagesOfTheLastToArriveWhenTheyRunOut) {
  PagePool pool(2);
  Scheduler scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 64}, pool);
  Sequence first = sequence_of(16);
  Sequence second = sequence_of(16);
  scheduler.add(first);
  scheduler.add(second);
  scheduler.schedule(Scheduler::Admission::kAll);
  scheduler.complete();
  first.tokens.push_back(2);
  second.tokens.push_back(2);

  const auto slices = scheduler.schedule(Scheduler::Admission::kAll);

  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].sequence, &first);
  EXPECT_EQ(second.computed, 0u);
  EXPECT_TRUE(second.pages.empty());
  EXPECT_EQ(scheduler.waiting(), 1u);
  EXPECT_EQ(scheduler.preemptions(), 1u);
}

TEST(Scheduler, LetsOnlyPreemptedOnesInWhileAPauseWaits) {
  PagePool pool(8);
  Scheduler scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 64}, pool);
  Sequence fresh = sequence_of(4);
  scheduler.add(fresh);

  EXPECT_TRUE(scheduler.schedule(Scheduler::Admission::kStarted).empty());
  EXPECT_TRUE(scheduler.schedule(Scheduler::Admission::kNone).empty());
  EXPECT_FALSE(scheduler.any_started());
  EXPECT_EQ(scheduler.schedule(Scheduler::Admission::kAll).size(), 1u);
}

// A model that needs no weights: it checks that it is given every position exactly once, in order,
// with pages to put it into, and ends each sequence after a number of tokens.
class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed) {}

  void run() {
    for (int event = 0; event < 400; ++event) {
      act(uniform(0, 9));
      step();
      check_pages();
    }
    admission_ = Scheduler::Admission::kAll;
    while (!alive_.empty()) {
      ASSERT_NO_FATAL_FAILURE(step());
      ASSERT_NO_FATAL_FAILURE(check_pages());
    }
    EXPECT_EQ(pool_.free_pages(), pool_.total_pages());
    EXPECT_EQ(ended_, arrived_);
  }

 private:
  struct Running : Sequence {
    std::size_t prompt = 0;
    std::size_t wanted = 0;  // tokens in all
  };

  std::size_t uniform(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }

  void act(std::size_t choice) {
    if (choice < 4) {
      Running sequence;
      sequence.prompt = uniform(1, 80);
      sequence.tokens.assign(sequence.prompt, 1);
      sequence.wanted = std::min<std::size_t>(kLongest, sequence.prompt + uniform(1, 60));
      alive_.push_back(std::move(sequence));
      scheduler_.add(alive_.back());
      ++arrived_;
    } else if (choice == 4 && !alive_.empty()) {
      end(std::next(alive_.begin(), static_cast<std::ptrdiff_t>(uniform(0, alive_.size() - 1))));
    } else if (choice == 5) {
      admission_ = Scheduler::Admission::kNone;
    } else if (choice == 6) {
      admission_ = Scheduler::Admission::kStarted;
    } else if (choice == 7) {
      scheduler_.drop_computed();
    } else {
      admission_ = Scheduler::Admission::kAll;
    }
  }

  void end(std::list<Running>::iterator at) {
    scheduler_.remove(*at);
    alive_.erase(at);
    ++ended_;
  }

  void step() {
    const auto slices = scheduler_.schedule(admission_);
    if (admission_ == Scheduler::Admission::kAll && !alive_.empty()) {
      ASSERT_FALSE(slices.empty()) << "nothing goes forward";
    }
    std::size_t tokens = 0;
    std::set<const Sequence*> seen;
    for (const Slice& slice : slices) {
      tokens += slice.end - slice.begin;
      EXPECT_TRUE(seen.insert(slice.sequence).second);
      EXPECT_EQ(slice.begin, slice.sequence->computed);
      EXPECT_LT(slice.begin, slice.end);
      EXPECT_GE(slice.sequence->pages.size() * kPageTokens, slice.end);
    }
    EXPECT_LE(tokens, kBudget);
    EXPECT_LE(scheduler_.running(), kMaxSeqs);
    std::vector<Sequence*> sampled;
    for (const Slice& slice : slices) {
      if (slice.reaches_end()) sampled.push_back(slice.sequence);
    }
    scheduler_.complete();
    for (Sequence* const sequence : sampled) {
      sequence->tokens.push_back(2);
      const auto at = std::ranges::find_if(
          alive_, [&](const Running& running) { return &running == sequence; });
      ASSERT_NE(at, alive_.end()) << "a sequence that has ended was computed";
      if (at->tokens.size() >= at->wanted) end(at);
    }
  }

  void check_pages() {
    std::map<std::uint32_t, std::uint32_t> holders;
    for (const Running& sequence : alive_) {
      for (const std::uint32_t page : sequence.pages) ++holders[page];
    }
    EXPECT_EQ(holders.size() + pool_.free_pages(), pool_.total_pages());
    for (const auto& [page, count] : holders) EXPECT_EQ(pool_.references(page), count);
  }

  static constexpr std::size_t kLongest = 128;
  static constexpr std::size_t kBudget = 48;
  static constexpr std::size_t kMaxSeqs = 6;

  std::mt19937_64 random_;
  PagePool pool_{kLongest / kPageTokens + 5};
  Scheduler scheduler_{{kMaxSeqs, kBudget, kPageTokens}, pool_};
  std::list<Running> alive_;
  Scheduler::Admission admission_ = Scheduler::Admission::kAll;
  std::size_t arrived_ = 0;
  std::size_t ended_ = 0;
};

TEST(Scheduler, LosesNoSequenceAndNoPageUnderRandomCalls) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Simulation(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace weft
