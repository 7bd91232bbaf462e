#include "weft/engine/worker_pool.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(WorkerPool, EveryWorkerDoesEveryJobOnce) {
  WorkerPool pool(3);
  std::vector<int> counts(3, 0);
  for (int job = 0; job < 1000; ++job) {
    auto count = [&](unsigned worker) { ++counts[worker]; };
    pool.run(count);
  }
  EXPECT_EQ(counts, (std::vector<int>{1000, 1000, 1000}));
}

TEST(WorkerPool, WhatWasWrittenBeforeABarrierIsReadAfterIt) {
  WorkerPool pool(3);
  std::vector<int> values(3, 0);
  std::vector<int> sums(3, 0);
  auto job = [&](unsigned worker) {
    for (int round = 1; round <= 500; ++round) {
      values[worker] = round;
      pool.barrier();
      for (const int value : values) sums[worker] += value - round;
      pool.barrier();
    }
  };
  pool.run(job);
  EXPECT_EQ(sums, (std::vector<int>{0, 0, 0}));
}

TEST(WorkerPool, OneWorkerIsTheCaller) {
  WorkerPool pool(1);
  int calls = 0;
  auto job = [&](unsigned worker) {
    pool.barrier();
    calls += worker == 0 ? 1 : 0;
  };
  pool.run(job);
  EXPECT_EQ(calls, 1);
}

TEST(SharedSteps, EachIsTakenOnceAndThoseOfAWorkerThatIsAwayByOthers) {
  WorkerPool pool(3);
  SharedSteps steps(3);
  std::vector<std::atomic<int>> taken(300);
  auto job = [&](unsigned worker) {
    for (int round = 0; round < 100; ++round) {
      steps.offer(worker, {100 * worker, 100 * (worker + 1)});
      pool.barrier();
      if (worker != 2) steps.for_each(worker, 3, [&](std::size_t step) { ++taken[step]; });
      pool.barrier();
    }
  };
  pool.run(job);
  for (const auto& count : taken) EXPECT_EQ(count, 100);
}

TEST(PartOf, CoversEverythingOnceAtMultiplesOfTheStep) {
  for (std::size_t total = 0; total < 60; ++total) {
    for (unsigned workers = 1; workers <= 5; ++workers) {
      std::size_t next = 0;
      for (unsigned worker = 0; worker < workers; ++worker) {
        const Range range = part_of(total, 8, worker, workers);
        EXPECT_EQ(range.begin, next);
        EXPECT_TRUE(range.begin % 8 == 0 || range.begin == total);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace weft
