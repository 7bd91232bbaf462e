#pragma once
// Scheduler: decides what each step computes, for which sequences, and who holds which pages. No
// threads, no clock, no maths: the same calls give the same decisions.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "weft/engine/kv_cache.h"
#include "weft/engine/prefix_cache.h"

namespace weft {

// A sequence as the scheduler sees it. `tokens` grows at the end only, by the owner, between steps;
// what follows `reads_cache` is the scheduler's.
struct Sequence {
  std::vector<std::uint32_t> tokens;  // the prompt, then what was generated
  std::string cache_salt;             // pages are shared among sequences with the same one only
  bool reads_cache = true;            // false: every position is computed for it
  std::vector<std::uint32_t>
      pages;                      // page i holds positions [i * page_tokens, (i + 1) * page_tokens)
  std::uint64_t computed = 0;     // positions whose keys and values are in `pages`
  bool started = false;           // was admitted at least once
  std::uint64_t arrival = 0;      // order of add()
  std::uint64_t cached = 0;       // positions that it found in the cache when it started
  PrefixCache::Name weights = 0;  // that it is computed with, from its start on
  // Of its first `named_pages` pages, 0 where that is none of one set of weights: then it shares no
  // more.
  PrefixCache::Name name = 0;
  std::uint64_t named_pages = 0;
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
  bool prefix_caching = true;
};

// In tokens. Source: vLLM's counters of the same names; sequences that do not read the cache or
// were preempted are not counted.
struct PrefixCacheStats {
  std::uint64_t queries = 0;
  std::uint64_t hits = 0;
};

// One thread. First come, first served: every running sequence arrived before every waiting one.
// When pages run out, the last to arrive gives up all of its own, waits at the head of the queue
// and is computed again later. Requires: the pool has pages for the longest sequence by itself, or
// it would never end.
//
// Full pages are shared among sequences that begin alike, as soon as they are scheduled: a page
// that the same step computes counts, for a step stores all keys and values of a layer before it
// reads them. So of many equal prompts that come together the first is computed, and of the others
// what comes after its full pages; of each sequence at least the last token is. Whoever holds a
// page that others may hold writes to it no more.
class Scheduler {
 public:
  enum class Admission {
    kAll,      // run what runs, let new ones in
    kStarted,  // run what runs, let only preempted ones in
    kNone      // nothing runs
  };

  // `pool` must outlive the scheduler.
  Scheduler(SchedulerLimits limits, PagePool& pool);

  // Queues it. It must stay where it is until it is removed. Requires: it has tokens.
  void add(Sequence& sequence);
  // Takes it out, waiting or running, and releases its pages. Not between schedule() and
  // complete().
  void remove(Sequence& sequence);

  // What to compute now; every slice's pages are reserved, and all of it must be computed. Valid
  // until the next call. Empty when nothing can run.
  std::span<const Slice> schedule(Admission admission);
  // The keys and values of all slices have been computed.
  void complete();

  // Sequences that start from now on are computed with other weights than those before.
  void change_weights() { weights_ = cache_.name_weights(); }
  // The sequence goes on with the newest weights: with the pages that it has, which nobody else may
  // use then, or computing all of them again.
  void carry_over(Sequence& sequence);
  void recompute(Sequence& sequence);

  // No sequence finds what was computed until now.
  void clear_cache();
  // Every sequence computes all its keys and values again, with the weights it has.
  void drop_computed();

  std::size_t running() const { return running_.size(); }
  std::size_t waiting() const { return waiting_.size(); }
  // Sequences that were started and have not ended: running, or waiting after a preemption.
  bool any_started() const {
    return !running_.empty() || (!waiting_.empty() && waiting_.front()->started);
  }
  std::uint64_t preemptions() const { return preemptions_; }
  PrefixCacheStats cache_stats() const { return cache_stats_; }
  const PrefixCache& cache() const { return cache_; }

 private:
  void schedule_running();
  void admit(Admission admission);
  void start(Sequence& sequence);
  std::uint64_t slice_end(const Sequence& sequence) const;
  void add_slice(Sequence& sequence);
  void find_cached(const Sequence& sequence);
  void take_found(Sequence& sequence);
  void share_full_pages(Sequence& sequence, std::uint64_t end);
  PrefixCache::Key key_of(const Sequence& sequence, std::uint64_t page,
                          PrefixCache::Name before) const;
  bool try_reserve(Sequence& sequence, std::uint64_t positions);
  std::uint64_t pages_for(std::uint64_t positions) const;
  void release_pages(Sequence& sequence);
  void preempt_last();

  const SchedulerLimits limits_;
  PagePool& pool_;
  PrefixCache cache_;
  PrefixCache::Name weights_;       // of sequences that start now
  std::vector<Sequence*> running_;  // by arrival
  std::deque<Sequence*> waiting_;   // by arrival
  std::vector<Slice> slices_;
  std::vector<PrefixCache::Found> found_;  // by find_cached(), from a sequence's first page on
  std::uint64_t budget_tokens_ = 0;        // left in the step being made
  std::uint64_t arrivals_ = 0;
  std::uint64_t preemptions_ = 0;
  PrefixCacheStats cache_stats_;
};

}  // namespace weft
