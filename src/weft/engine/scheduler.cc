#include "weft/engine/scheduler.h"

#include <algorithm>

namespace weft {
namespace {

// Takes it out of what is ordered by arrival, if it is in there.
template <typename Sequences>
void take_out(Sequences& sequences, const Sequence& sequence) {
  const auto at = std::ranges::lower_bound(sequences, sequence.arrival, {}, &Sequence::arrival);
  if (at != sequences.end() && *at == &sequence) sequences.erase(at);
}

}  // namespace

Scheduler::Scheduler(SchedulerLimits limits, PagePool& pool)
    : limits_(limits),
      pool_(pool),
      cache_(pool.total_pages(), limits.page_tokens),
      weights_(cache_.name_weights()) {}

void Scheduler::add(Sequence& sequence) {
  sequence.arrival = ++arrivals_;
  waiting_.push_back(&sequence);
}

void Scheduler::remove(Sequence& sequence) {
  take_out(running_, sequence);
  take_out(waiting_, sequence);
  release_pages(sequence);
}

std::span<const Slice> Scheduler::schedule(Admission admission) {
  slices_.clear();
  if (admission == Admission::kNone) return slices_;
  budget_tokens_ = limits_.max_num_batched_tokens;
  const std::uint64_t preemptions_before = preemptions_;
  schedule_running();
  // Whoever has just given up its pages would take them back at once.
  if (preemptions_ == preemptions_before) admit(admission);
  return slices_;
}

void Scheduler::complete() {
  for (const Slice& slice : slices_) slice.sequence->computed = slice.end;
}

void Scheduler::carry_over(Sequence& sequence) {
  sequence.weights = weights_;
  sequence.name = 0;
}

void Scheduler::recompute(Sequence& sequence) {
  carry_over(sequence);
  release_pages(sequence);
}

void Scheduler::clear_cache() {
  cache_.forget_all();
  for (Sequence* const sequence : running_) sequence->name = 0;
}

void Scheduler::drop_computed() {
  for (Sequence* const sequence : running_) release_pages(*sequence);
}

void Scheduler::schedule_running() {
  for (std::size_t i = 0; i < running_.size() && budget_tokens_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.pages.empty()) {  // it gave up what it had computed
      find_cached(sequence);
      take_found(sequence);
    }
    // The last one has no slice yet: slices are made in order, and it may be `sequence` itself.
    while (!try_reserve(sequence, slice_end(sequence))) {
      const bool gave_up_itself = running_.back() == &sequence;
      preempt_last();
      if (gave_up_itself) return;
    }
    add_slice(sequence);
  }
}

void Scheduler::admit(Admission admission) {
  while (!waiting_.empty() && budget_tokens_ > 0 && running_.size() < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    if (admission == Admission::kStarted && !sequence.started) return;
    if (!sequence.started) sequence.weights = weights_;
    find_cached(sequence);
    const auto found_free = static_cast<std::size_t>(std::ranges::count_if(
        found_, [&](PrefixCache::Found found) { return pool_.references(found.page) == 0; }));
    // Room for all of it, though a first slice may be shorter: a long prompt that finds no more
    // pages half way would have been computed for nothing.
    const std::uint64_t wanted = pages_for(sequence.tokens.size()) - found_.size();
    if (wanted > pool_.free_pages() - found_free) return;
    waiting_.pop_front();
    running_.push_back(&sequence);
    take_found(sequence);
    if (!sequence.started) start(sequence);
    try_reserve(sequence, sequence.tokens.size());
    add_slice(sequence);
  }
}

void Scheduler::start(Sequence& sequence) {
  sequence.started = true;
  sequence.cached = sequence.computed;
  if (!limits_.prefix_caching || !sequence.reads_cache) return;
  cache_stats_.queries += sequence.tokens.size();
  cache_stats_.hits += sequence.cached;
}

std::uint64_t Scheduler::slice_end(const Sequence& sequence) const {
  return std::min(sequence.tokens.size(), sequence.computed + budget_tokens_);
}

void Scheduler::add_slice(Sequence& sequence) {
  const std::uint64_t end = slice_end(sequence);
  budget_tokens_ -= end - sequence.computed;
  slices_.push_back({&sequence, sequence.computed, end});
  share_full_pages(sequence, end);
}

// Never the page of the last token: whoever finds all others computes at least that.
void Scheduler::find_cached(const Sequence& sequence) {
  found_.clear();
  if (!limits_.prefix_caching || !sequence.reads_cache) return;
  PrefixCache::Name before = sequence.weights;
  for (std::uint64_t page = 0; (page + 1) * limits_.page_tokens < sequence.tokens.size(); ++page) {
    const auto found = cache_.try_find(key_of(sequence, page, before));
    if (!found) return;
    found_.push_back(*found);
    before = found->name;
  }
}

// Requires: the sequence has no pages, and find_cached() was the last to write found_.
void Scheduler::take_found(Sequence& sequence) {
  for (const PrefixCache::Found& found : found_) {
    pool_.add_reference(found.page);
    sequence.pages.push_back(found.page);
  }
  sequence.computed = found_.size() * limits_.page_tokens;
  sequence.named_pages = found_.size();
  sequence.name = found_.empty() ? sequence.weights : found_.back().name;
}

// All positions before `end` are computed, at the latest by this step. Where another page holds the
// same, that one goes on being found.
void Scheduler::share_full_pages(Sequence& sequence, std::uint64_t end) {
  if (!limits_.prefix_caching || sequence.name == 0) return;
  for (; sequence.named_pages < end / limits_.page_tokens; ++sequence.named_pages) {
    const PrefixCache::Key key = key_of(sequence, sequence.named_pages, sequence.name);
    const auto found = cache_.try_find(key);
    sequence.name = found ? found->name : cache_.add(sequence.pages[sequence.named_pages], key);
  }
}

PrefixCache::Key Scheduler::key_of(const Sequence& sequence, std::uint64_t page,
                                   PrefixCache::Name before) const {
  return {before, page == 0 ? std::string_view(sequence.cache_salt) : std::string_view(),
          std::span(sequence.tokens).subspan(page * limits_.page_tokens, limits_.page_tokens)};
}

bool Scheduler::try_reserve(Sequence& sequence, std::uint64_t positions) {
  while (sequence.pages.size() < pages_for(positions)) {
    const auto page = pool_.try_take();
    if (!page) return false;
    cache_.forget(*page);
    sequence.pages.push_back(*page);
  }
  return true;
}

std::uint64_t Scheduler::pages_for(std::uint64_t positions) const {
  return (positions + limits_.page_tokens - 1) / limits_.page_tokens;
}

// The last pages first: they are found by way of those before, which are to be forgotten later.
void Scheduler::release_pages(Sequence& sequence) {
  for (; !sequence.pages.empty(); sequence.pages.pop_back()) {
    const std::uint32_t page = sequence.pages.back();
    // What was computed with weights of before is of use to those alone who have it still.
    if (sequence.name == 0 && pool_.references(page) == 1) cache_.forget(page);
    pool_.release(page, cache_.holds(page));
  }
  sequence.computed = 0;
}

void Scheduler::preempt_last() {
  Sequence& last = *running_.back();
  running_.pop_back();
  release_pages(last);
  waiting_.push_front(&last);
  ++preemptions_;
}

}  // namespace weft
