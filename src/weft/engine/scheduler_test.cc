#include "weft/engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

using Admission = Scheduler::Admission;

// Tokens first, first + 1, ...
Sequence sequence_of(std::size_t tokens, std::uint32_t first) {
  Sequence sequence;
  sequence.tokens.resize(tokens);
  std::iota(sequence.tokens.begin(), sequence.tokens.end(), first);
  return sequence;
}

std::vector<Slice> step(Scheduler& scheduler) {
  const auto slices = scheduler.schedule(Admission::kAll);
  std::vector<Slice> computed(slices.begin(), slices.end());
  scheduler.complete();
  return computed;
}

// Runs it by itself until its prompt is computed, and ends it.
void run_to_end(Scheduler& scheduler, Sequence sequence) {
  scheduler.add(sequence);
  while (sequence.computed < sequence.tokens.size()) step(scheduler);
  scheduler.remove(sequence);
}

TEST(Scheduler, CutsAPromptToTheBudgetAndGoesOnWithTheNextStep) {
  PagePool pool(8);
  Scheduler scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 20}, pool);
  Sequence first = sequence_of(30, 100);
  Sequence second = sequence_of(5, 200);
  scheduler.add(first);
  scheduler.add(second);

  const auto one = step(scheduler);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].end, 20u);
  EXPECT_FALSE(one[0].reaches_end());

  const auto two = step(scheduler);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].begin, 20u);
  EXPECT_TRUE(two[0].reaches_end());
  EXPECT_EQ(two[1].sequence, &second);
}

TEST(Scheduler, TakesThePagesOfTheLastToArriveWhenTheyRunOut) {
  PagePool pool(2);
  Scheduler scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 64}, pool);
  Sequence first = sequence_of(16, 100);
  Sequence second = sequence_of(16, 200);
  scheduler.add(first);
  scheduler.add(second);
  step(scheduler);
  first.tokens.push_back(2);
  second.tokens.push_back(2);

  const auto slices = step(scheduler);

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
  Sequence fresh = sequence_of(4, 100);
  scheduler.add(fresh);

  EXPECT_TRUE(scheduler.schedule(Admission::kStarted).empty());
  EXPECT_TRUE(scheduler.schedule(Admission::kNone).empty());
  EXPECT_FALSE(scheduler.any_started());
  EXPECT_EQ(scheduler.schedule(Admission::kAll).size(), 1u);
}

// ---- The prefix cache ----

TEST(SchedulerCache, EqualPromptsThatComeTogetherAreComputedOnce) {
  PagePool pool(64);
  Scheduler scheduler({.max_num_seqs = 16, .max_num_batched_tokens = 50}, pool);
  std::vector<Sequence> group(16, sequence_of(75, 1));
  for (Sequence& sequence : group) scheduler.add(sequence);

  std::uint64_t computed = 0;  // of the prompts
  while (group.back().computed < 75) {
    for (const Slice& slice : step(scheduler)) {
      computed += std::min<std::uint64_t>(slice.end, 75) - std::min<std::uint64_t>(slice.begin, 75);
      if (slice.reaches_end())
        slice.sequence->tokens.push_back(static_cast<std::uint32_t>(computed));
    }
  }

  // Four full pages of 16 once, and of each sequence the 11 tokens after them.
  EXPECT_EQ(computed, 64u + 16 * 11);
  EXPECT_EQ(group[0].cached, 0u);
  EXPECT_EQ(group[15].cached, 64u);
  EXPECT_EQ(pool.total_pages() - pool.free_pages(), 4u + 16);
}

TEST(SchedulerCache, TheLastTokenIsComputedAlsoWhereAllPagesAreThere) {
  PagePool pool(8);
  Scheduler scheduler({}, pool);
  run_to_end(scheduler, sequence_of(32, 1));
  Sequence again = sequence_of(32, 1);
  scheduler.add(again);
  const auto slices = step(scheduler);

  EXPECT_EQ(again.cached, 16u);
  EXPECT_EQ(slices.at(0).begin, 16u);
  EXPECT_EQ(scheduler.cache_stats().queries, 64u);
  EXPECT_EQ(scheduler.cache_stats().hits, 16u);
}

TEST(SchedulerCache, WhatWasGeneratedIsFoundByAConversationThatGoesOn) {
  PagePool pool(8);
  Scheduler scheduler({}, pool);
  Sequence first = sequence_of(20, 1);
  scheduler.add(first);
  for (std::uint32_t token = 21; token < 41; ++token) {
    step(scheduler);
    first.tokens.push_back(token);
  }
  scheduler.remove(first);
  Sequence next = sequence_of(50, 1);
  scheduler.add(next);
  step(scheduler);

  EXPECT_EQ(next.cached, 32u);  // positions 0 to 38 were computed
}

TEST(SchedulerCache, OtherTokensASaltOrOtherWeightsShareNothing) {
  PagePool pool(16);
  Scheduler scheduler({}, pool);
  run_to_end(scheduler, sequence_of(40, 1));
  const auto cached = [&](Sequence sequence) {
    scheduler.add(sequence);
    step(scheduler);
    scheduler.remove(sequence);
    return sequence.cached;
  };
  Sequence other = sequence_of(40, 1);
  other.tokens[0] = 9;  // its second page has the same tokens
  EXPECT_EQ(cached(other), 0u);
  Sequence salted = sequence_of(40, 1);
  salted.cache_salt = "salt";
  EXPECT_EQ(cached(salted), 0u);
  EXPECT_EQ(cached(salted), 32u);
  EXPECT_EQ(cached(sequence_of(40, 1)), 32u);
  for (int other_salt = 0; other_salt < 100; ++other_salt) {
    salted.cache_salt = std::to_string(other_salt);
    EXPECT_EQ(cached(salted), 0u);
  }

  run_to_end(scheduler, sequence_of(40, 1));
  scheduler.change_weights();
  EXPECT_EQ(cached(sequence_of(40, 1)), 0u);
  EXPECT_EQ(cached(sequence_of(40, 1)), 32u);
  scheduler.clear_cache();
  EXPECT_EQ(cached(sequence_of(40, 1)), 0u);
}

TEST(SchedulerCache, PagesOfASequenceThatWentOnWithOtherWeightsAreNobodysElse) {
  PagePool pool(16);
  Scheduler scheduler({}, pool);
  Sequence running = sequence_of(40, 1);
  scheduler.add(running);
  step(scheduler);
  scheduler.change_weights();
  scheduler.carry_over(running);
  for (std::uint32_t token = 41; token < 60; ++token) {
    running.tokens.push_back(token);
    step(scheduler);
  }
  Sequence fresh = sequence_of(60, 1);
  scheduler.add(fresh);
  step(scheduler);
  EXPECT_EQ(fresh.cached, 0u);

  scheduler.recompute(running);
  step(scheduler);
  EXPECT_EQ(running.pages[0], fresh.pages[0]);  // with the new weights alone it shares again
}

TEST(SchedulerCache, NorForThoseThatEndOnTheOldWeights) {
  PagePool pool(32);
  Scheduler scheduler({.max_num_seqs = 4, .max_num_batched_tokens = 41}, pool);
  Sequence finishes = sequence_of(33, 1);
  Sequence goes_on = sequence_of(39, 1);
  Sequence also_finishes = sequence_of(33, 1);
  for (Sequence* const sequence : {&finishes, &goes_on, &also_finishes}) scheduler.add(*sequence);
  ASSERT_EQ(step(scheduler).size(), 3u);
  scheduler.change_weights();
  scheduler.carry_over(goes_on);  // half of its third page will be of the new weights
  for (std::uint32_t token = 34; token < 52; ++token) {
    finishes.tokens.push_back(token);
    goes_on.tokens.push_back(token + 6);
    also_finishes.tokens.push_back(token);
    step(scheduler);
  }
  const std::uint32_t mixed = goes_on.pages.at(2);
  scheduler.drop_computed();
  const auto slices = step(scheduler);

  EXPECT_EQ(slices.at(0).begin, 48u);
  EXPECT_NE(finishes.pages.at(2), mixed);
}

TEST(SchedulerCache, SequencesThatEndOnOldWeightsStillShareAmongThemselves) {
  PagePool pool(32);
  Scheduler scheduler({.max_num_seqs = 8, .max_num_batched_tokens = 64}, pool);
  Sequence first = sequence_of(40, 1);
  Sequence second = sequence_of(40, 1);
  scheduler.add(first);
  scheduler.add(second);
  step(scheduler);
  scheduler.change_weights();
  Sequence fresh = sequence_of(40, 1);
  scheduler.add(fresh);
  scheduler.drop_computed();
  step(scheduler);
  step(scheduler);

  EXPECT_EQ(first.pages[1], second.pages[1]);
  EXPECT_NE(first.pages[0], fresh.pages[0]);
}

TEST(SchedulerCache, PagesUnusedForLongestAreTakenFirst) {
  PagePool pool(6);
  Scheduler scheduler({}, pool);
  run_to_end(scheduler, sequence_of(32, 100));
  run_to_end(scheduler, sequence_of(32, 200));
  run_to_end(scheduler, sequence_of(17, 100));  // uses a page of the first, and one for itself
  run_to_end(scheduler, sequence_of(48, 300));
  const auto cached = [&](std::uint32_t first) {
    Sequence sequence = sequence_of(17, first);
    scheduler.add(sequence);
    step(scheduler);
    scheduler.remove(sequence);
    return sequence.cached;
  };
  EXPECT_EQ(cached(100), 16u);
  EXPECT_EQ(cached(300), 16u);
  EXPECT_EQ(cached(200), 16u);
  run_to_end(scheduler, sequence_of(64, 400));
  EXPECT_EQ(cached(200), 16u);
  EXPECT_EQ(cached(100), 0u);
}

TEST(SchedulerCache, IsReadByNoneThatMayNotAndByNobodyWhenItIsOff) {
  for (const bool on : {true, false}) {
    PagePool pool(16);
    Scheduler scheduler({.prefix_caching = on}, pool);
    run_to_end(scheduler, sequence_of(40, 1));
    Sequence sequence = sequence_of(40, 1);
    sequence.reads_cache = !on;
    scheduler.add(sequence);
    step(scheduler);
    EXPECT_EQ(sequence.cached, 0u);
    EXPECT_EQ(scheduler.cache_stats().queries, on ? 40u : 0u);
  }
}

TEST(SchedulerCache, APromptWhosePagesAreThereNeedsRoomForTheRestAlone) {
  PagePool pool(5);
  Scheduler scheduler({}, pool);
  Sequence first = sequence_of(50, 1);
  scheduler.add(first);
  step(scheduler);
  first.tokens.push_back(2);
  Sequence second = sequence_of(50, 1);
  scheduler.add(second);
  EXPECT_EQ(step(scheduler).size(), 2u);
  EXPECT_EQ(second.cached, 48u);
}

}  // namespace
}  // namespace weft
