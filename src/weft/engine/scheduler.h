#pragma once
// Scheduler: decides what each step computes, for which sequences, and who holds which pages. No
// threads, no clock, no maths: the same calls give the same decisions.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "weft/engine/kv_cache.h"

namespace weft {

// A sequence as the scheduler sees it. `tokens` grows at the end only, by the owner, between steps;
// pages, computed and started are the scheduler's.
struct Sequence {
  std::vector<std::uint32_t> tokens;  // the prompt, then what was generated
  std::vector<std::uint32_t>
      pages;                   // page i holds positions [i * page_tokens, (i + 1) * page_tokens)
  std::uint64_t computed = 0;  // positions whose keys and values are in `pages`
  bool started = false;        // was admitted at least once
};

// Positions [begin, end) of a sequence, to be computed in this step. Where the end is the
// sequence's, its next token is to be sampled.
struct Slice {
  Sequence* sequence = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  bool reaches_end() const { return end == sequence->tokens.size(); }
};

struct SchedulerLimits {
  std::uint64_t max_num_seqs = 256;
  std::uint64_t max_num_batched_tokens = 2048;
  std::uint64_t page_tokens = 16;
};

// One thread. First come, first served: every running sequence arrived before every waiting one.
// When pages run out, the last to arrive gives up all of its own, waits at the head of the queue
// and is computed again later. Requires: the pool has pages for the longest sequence by itself, or
// it would never end.
class Scheduler {
 public:
  enum class Admission {
    kAll,      // run what runs, let new ones in
    kStarted,  // run what runs, let only preempted ones in
    kNone      // nothing runs
  };

  // `pool` must outlive the scheduler.
  Scheduler(SchedulerLimits limits, PagePool& pool) : limits_(limits), pool_(pool) {}

  // Queues it. It must stay where it is until it is removed. Requires: it has tokens.
  void add(Sequence& sequence) { waiting_.push_back(&sequence); }
  // Takes it out, waiting or running, and releases its pages. Not between schedule() and
  // complete().
  void remove(Sequence& sequence);

  // What to compute now; every slice's pages are reserved. Valid until the next call. Empty when
  // nothing can run.
  std::span<const Slice> schedule(Admission admission);
  // The keys and values of all slices have been computed.
  void complete();

  // The sequence, or every one, computes all its keys and values again.
  void drop_computed(Sequence& sequence) { release_pages(sequence); }
  void drop_computed();

  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  // Sequences that were started and have not ended: running, or waiting after a preemption.
  bool any_started() const {
    return !running_.empty() || (!waiting_.empty() && waiting_.front()->started);
  }
  std::uint64_t preemptions() const { return preemptions_; }

 private:
  void schedule_running();
  void admit(Admission admission);
  std::uint64_t slice_end(const Sequence& sequence) const;
  void add_slice(Sequence& sequence);
  bool try_reserve(Sequence& sequence, std::uint64_t positions);
  std::uint64_t pages_for(std::uint64_t positions) const;
  void release_pages(Sequence& sequence);
  void preempt_last();

  const SchedulerLimits limits_;
  PagePool& pool_;
  std::vector<Sequence*> running_;  // by arrival
  std::deque<Sequence*> waiting_;   // by arrival
  std::vector<Slice> slices_;
  std::uint64_t budget_tokens_ = 0;  // left in the step being made
  std::uint64_t preemptions_ = 0;
};

}  // namespace weft
