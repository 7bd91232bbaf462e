#include "weft/engine/scheduler.h"

#include <algorithm>

namespace weft {

void Scheduler::remove(Sequence& sequence) {
  std::erase(running_, &sequence);
  std::erase(waiting_, &sequence);
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

void Scheduler::drop_computed() {
  for (Sequence* const sequence : running_) release_pages(*sequence);
}

void Scheduler::schedule_running() {
  for (std::size_t i = 0; i < running_.size() && budget_tokens_ > 0; ++i) {
    Sequence& sequence = *running_[i];
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
    // Room for all of it, though a first slice may be shorter: a long prompt that finds no more
    // pages half way would have been computed for nothing.
    if (pages_for(sequence.tokens.size()) > pool_.free_pages()) return;
    waiting_.pop_front();
    running_.push_back(&sequence);
    sequence.started = true;
    try_reserve(sequence, sequence.tokens.size());
    add_slice(sequence);
  }
}

std::uint64_t Scheduler::slice_end(const Sequence& sequence) const {
  return std::min(sequence.tokens.size(), sequence.computed + budget_tokens_);
}

void Scheduler::add_slice(Sequence& sequence) {
  const std::uint64_t end = slice_end(sequence);
  budget_tokens_ -= end - sequence.computed;
  slices_.push_back({&sequence, sequence.computed, end});
}

bool Scheduler::try_reserve(Sequence& sequence, std::uint64_t positions) {
  while (sequence.pages.size() < pages_for(positions)) {
    const auto page = pool_.try_take();
    if (!page) return false;
    sequence.pages.push_back(*page);
  }
  return true;
}

std::uint64_t Scheduler::pages_for(std::uint64_t positions) const {
  return (positions + limits_.page_tokens - 1) / limits_.page_tokens;
}

void Scheduler::release_pages(Sequence& sequence) {
  for (const std::uint32_t page : sequence.pages) pool_.release(page);
  sequence.pages.clear();
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
