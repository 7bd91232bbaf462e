// The scheduler under random arrivals, ends, pauses and changes of weights, with a model that needs
// no weights: instead of keys and values it keeps, for each position, what they would have been
// computed from.

#include <algorithm>
#include <list>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/engine/scheduler.h"
#include "weft/tensor/on_update.h"

namespace weft {
namespace {

using Admission = Scheduler::Admission;

constexpr std::size_t kPageTokens = 16;
constexpr std::size_t kLongest = 128;
constexpr std::size_t kMaxSeqs = 6;

// What a position's keys and values depend on: the weights that computed them, and all tokens up to
// it. A salt does not change them, but whoever has another must not get them.
struct Content {
  std::uint64_t weights = 0;
  std::string salt;
  std::vector<std::uint32_t> tokens;

  bool operator==(const Content&) const = default;
};
struct Slot {
  Content content;
  std::uint64_t written_at = 0;
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed)
      : random_(seed),
        budget_(uniform(1, 4) * 16),
        pool_(static_cast<std::uint32_t>(kLongest / kPageTokens + uniform(1, 20))),
        scheduler_({kMaxSeqs, budget_, kPageTokens, uniform(0, 9) > 0}, pool_),
        memory_(pool_.total_pages() * kPageTokens) {}

  void run() {
    for (int event = 0; event < 300; ++event) {
      act(uniform(0, 15));
      ASSERT_NO_FATAL_FAILURE(step());
      ASSERT_NO_FATAL_FAILURE(check_pages());
    }
    admission_ = Admission::kAll;
    while (!alive_.empty()) {
      ASSERT_NO_FATAL_FAILURE(step());
      ASSERT_NO_FATAL_FAILURE(check_pages());
    }
    EXPECT_EQ(pool_.free_pages(), pool_.total_pages());
    EXPECT_EQ(ended_, arrived_);
  }

  std::uint64_t hits() const { return scheduler_.cache_stats().hits; }
  std::uint64_t preemptions() const { return scheduler_.preemptions(); }

 private:
  struct Running : Sequence {
    std::size_t wanted = 0;                  // tokens in all
    std::uint64_t model = 0;                 // the weights it runs on; 0 before it starts
    std::vector<std::uint64_t> computed_by;  // [computed], the weights of each position
  };

  std::size_t uniform(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }

  void act(std::size_t choice) {
    switch (choice) {
      case 0:
        if (alive_.empty()) return;
        return end(
            std::next(alive_.begin(), static_cast<std::ptrdiff_t>(uniform(0, alive_.size() - 1))));
      case 1:
        admission_ = Admission::kNone;
        return;
      case 2:
        admission_ = Admission::kStarted;
        return;
      case 3:  // a pause that aborts
        admission_ = Admission::kNone;
        while (!alive_.empty()) end(alive_.begin());
        return;
      case 4:
        if (uniform(0, 1) == 0) drop_all();
        if (uniform(0, 1) == 0) return;
        scheduler_.clear_cache();
        cleared_at_ = ++clock_;
        return;
      case 5:
        return change_weights();
      case 6:
      case 7:
      case 8:
        admission_ = Admission::kAll;
        return;
      case 9:  // a group
        for (std::size_t n = uniform(2, 8), kind = uniform(0, 3); n > 0; --n) arrive(kind);
        return;
      default:
        return arrive(uniform(0, 3));
    }
  }

  // Prompts of a few kinds, that begin alike for a while.
  void arrive(std::size_t kind) {
    Running sequence;
    sequence.tokens.assign(uniform(1, 90), static_cast<std::uint32_t>(kind));
    if (uniform(0, 2) == 0) sequence.tokens[uniform(0, sequence.tokens.size() - 1)] = 7;
    if (uniform(0, 3) == 0) sequence.cache_salt = "salt";
    sequence.reads_cache = uniform(0, 9) > 0;
    sequence.wanted = std::min(kLongest, sequence.tokens.size() + uniform(1, 60));
    alive_.push_back(std::move(sequence));
    scheduler_.add(alive_.back());
    ++arrived_;
  }

  void end(std::list<Running>::iterator at) {
    scheduler_.remove(*at);
    alive_.erase(at);
    ++ended_;
  }

  void drop_all() {
    scheduler_.drop_computed();
    for (Running& sequence : alive_) sequence.computed_by.clear();
  }

  // As the engine does it; each sequence has its own word.
  void change_weights() {
    const std::uint64_t before = model_++;
    scheduler_.change_weights();
    for (auto next = alive_.begin(); next != alive_.end();) {
      const auto at = next++;
      if (at->model != before) continue;
      switch (static_cast<OnUpdate>(uniform(0, 3))) {
        case OnUpdate::kContinue:
          scheduler_.carry_over(*at);
          break;
        case OnUpdate::kRecompute:
          scheduler_.recompute(*at);
          at->computed_by.clear();
          break;
        case OnUpdate::kFinish:
          continue;
        case OnUpdate::kAbort:
          end(at);
          continue;
      }
      at->model = model_;
    }
  }

  void step() {
    const auto scheduled = scheduler_.schedule(admission_);
    const std::vector<Slice> slices(scheduled.begin(), scheduled.end());
    ASSERT_NO_FATAL_FAILURE(check_order(slices));
    // All of a step's keys and values are stored before any is read.
    const std::uint64_t begin = clock_;
    for (const Slice& slice : slices) ASSERT_NO_FATAL_FAILURE(compute(slice, begin));
    for (const Slice& slice : slices) ASSERT_NO_FATAL_FAILURE(read(slice));
    scheduler_.complete();
    for (const Slice& slice : slices) {
      if (slice.end < slice.sequence->tokens.size()) continue;
      const auto at = std::ranges::find_if(
          alive_, [&](const Running& running) { return &running == slice.sequence; });
      // Sequences that began alike mostly go on alike.
      at->tokens.push_back(uniform(0, 20) == 0 ? 7 : at->tokens.front());
      if (at->tokens.size() >= at->wanted) end(at);
    }
  }

  // First come, first served: those that are computed are the first that arrived, each once.
  void check_order(const std::vector<Slice>& slices) {
    const bool has_work =
        admission_ == Admission::kAll
            ? !alive_.empty()
            : admission_ == Admission::kStarted && !alive_.empty() && alive_.front().model != 0;
    ASSERT_EQ(!slices.empty(), has_work);
    std::size_t tokens = 0;
    auto next = alive_.begin();
    for (const Slice& slice : slices) {
      ASSERT_NE(next, alive_.end());
      ASSERT_EQ(slice.sequence, &*next) << "not the next that arrived";
      ASSERT_TRUE(admission_ == Admission::kAll || next->model != 0);
      ASSERT_EQ(slice.begin, next->computed);
      ASSERT_LT(slice.begin, slice.end);
      ASSERT_GE(next->pages.size() * kPageTokens, slice.end);
      tokens += slice.end - slice.begin;
      ++next;
    }
    ASSERT_LE(tokens, budget_);
    ASSERT_LE(scheduler_.running(), kMaxSeqs);
  }

  Content content(const Running& sequence, std::size_t position, std::uint64_t model) const {
    return {model,
            sequence.cache_salt,
            {sequence.tokens.begin(),
             sequence.tokens.begin() + static_cast<std::ptrdiff_t>(position) + 1}};
  }
  Slot& slot(const Running& sequence, std::size_t position) {
    return memory_[sequence.pages[position / kPageTokens] * kPageTokens + position % kPageTokens];
  }

  void compute(const Slice& slice, std::uint64_t step_begin) {
    auto& sequence = static_cast<Running&>(*slice.sequence);
    if (sequence.model == 0) sequence.model = model_;
    while (sequence.computed_by.size() < slice.begin) {  // it found them
      ASSERT_TRUE(sequence.reads_cache);
      ASSERT_GT(slot(sequence, sequence.computed_by.size()).written_at, cleared_at_);
      sequence.computed_by.push_back(sequence.model);
    }
    for (std::size_t position = slice.begin; position < slice.end; ++position) {
      ASSERT_LE(slot(sequence, position).written_at, step_begin) << "two write to one place";
      slot(sequence, position) = {content(sequence, position, sequence.model), ++clock_};
      sequence.computed_by.push_back(sequence.model);
    }
  }

  void read(const Slice& slice) {
    const auto& sequence = static_cast<const Running&>(*slice.sequence);
    for (std::size_t position = 0; position < slice.end; ++position) {
      ASSERT_EQ(slot(sequence, position).content,
                content(sequence, position, sequence.computed_by[position]))
          << "position " << position;
    }
  }

  // Every page is free, cached or not, or held by exactly those that it is counted for.
  void check_pages() {
    std::vector<std::uint32_t> holders(pool_.total_pages(), 0);
    for (Running& sequence : alive_) {
      for (const std::uint32_t page : sequence.pages) ++holders[page];
      if (sequence.pages.empty()) sequence.computed_by.clear();  // it was preempted
    }
    PagePool copy = pool_;
    while (const auto page = copy.try_take()) {
      ASSERT_EQ(holders[*page], 0u) << "a free page is held";
      holders[*page] = 1;
    }
    for (std::uint32_t page = 0; page < holders.size(); ++page) {
      ASSERT_EQ(copy.references(page), holders[page]) << "page " << page;
    }
  }

  std::mt19937_64 random_;
  const std::size_t budget_;
  PagePool pool_;
  Scheduler scheduler_;
  std::vector<Slot> memory_;
  std::list<Running> alive_;  // by arrival
  Admission admission_ = Admission::kAll;
  std::uint64_t model_ = 1;  // the weights that are served
  std::uint64_t clock_ = 0;
  std::uint64_t cleared_at_ = 0;
  std::size_t arrived_ = 0;
  std::size_t ended_ = 0;
};

TEST(SchedulerProperties, NothingIsLostMixedUpOrOvertakenUnderRandomCalls) {
  std::uint64_t hits = 0, preemptions = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(seed);
    simulation.run();
    if (HasFailure()) return;
    hits += simulation.hits();
    preemptions += simulation.preemptions();
  }
  EXPECT_GT(hits, 10'000u);
  EXPECT_GT(preemptions, 300u);
}

}  // namespace
}  // namespace weft
