#pragma once
// Along the base, from change to change.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/codec/internal/elements.h"
#include "weft/codec/internal/load_store.h"
#include "weft/codec/internal/scan.h"
#include "weft/codec/internal/sparse_form.h"

namespace weft::internal {

// Where the changes of `streams` are in `base`. Calls on_segment(first element, count) for each
// segment in order, then on_change(position, old, next) for each change in it, ascending.
template <typename T>
class SparseWalk {
 public:
  SparseWalk(const SparseStreams<T>& streams, std::span<const std::byte> base, ElemKind kind)
      : streams_(streams), base_(base), kind_(kind), rule_(kind) {
    for (std::size_t c = 0; c < streams.classes.classes; ++c) {
      next_[c] = streams.first[c];
      wait_[c] = wait_of(c);
    }
  }

  // False: the base has fewer elements of a class than the changes pass over.
  template <typename OnSegment, typename OnChange>
  bool run(OnSegment on_segment, OnChange on_change) {
    const std::size_t elements = base_.size() / sizeof(T);
    for (std::size_t begin = 0; begin < elements; begin += kSegment) {
      const std::size_t count = std::min(kSegment, elements - begin);
      on_segment(begin, count);
      const std::byte* const segment = base_.data() + begin * sizeof(T);
      segment_counts(segment, kind_, count, streams_.classes, keys_, counts_);
      if (!find_in_segment()) continue;
      for (std::size_t w = 0; w < kSegmentWords; ++w) {
        for (std::uint64_t bits = changed_[w]; bits != 0; bits &= bits - 1) {
          const std::size_t i = 64 * w + static_cast<std::size_t>(std::countr_zero(bits));
          const T old = load<T>(segment + i * sizeof(T));
          on_change(begin + i, old, rule_.stepped(old, steps_[i]));
        }
      }
      changed_.fill(0);
    }
    for (std::size_t c = 0; c < streams_.classes.classes; ++c) {
      if (next_[c] != streams_.first[c + 1]) return false;
    }
    return true;
  }

 private:
  // More than any block has elements left.
  static constexpr std::uint64_t kNever = std::uint64_t{1} << 40;

  std::uint64_t wait_of(std::size_t c) const {
    return next_[c] < streams_.first[c + 1] ? streams_.gaps[next_[c]] : kNever;
  }

  // Fills changed_ and steps_. Returns false if nothing changes here.
  bool find_in_segment() {
    bool found = false;
    for (std::size_t c = 0; c < streams_.classes.classes; ++c) {
      if (wait_[c] >= counts_[c]) {
        wait_[c] -= counts_[c];
        continue;
      }
      found = true;
      class_bits(keys_, streams_.classes, c, bits_);
      std::uint64_t rank = wait_[c];
      do {
        const std::size_t i = select(static_cast<unsigned>(rank));
        changed_[i / 64] |= std::uint64_t{1} << (i % 64);
        steps_[i] = streams_.steps[next_[c]++];
        rank += 1 + wait_of(c);
      } while (rank < counts_[c]);
      wait_[c] = rank - counts_[c];
    }
    return found;
  }

  // The bit of bits_ that has `rank` set ones before it. Requires: there is one.
  std::size_t select(unsigned rank) const {
    std::size_t w = 0;
    for (unsigned ones = 0; rank >= (ones = static_cast<unsigned>(std::popcount(bits_[w]))); ++w) {
      rank -= ones;
    }
    std::uint64_t word = bits_[w];
    for (; rank > 0; --rank) word &= word - 1;
    return 64 * w + static_cast<std::size_t>(std::countr_zero(word));
  }

  const SparseStreams<T>& streams_;
  std::span<const std::byte> base_;
  ElemKind kind_;
  ElementRule<T> rule_;
  std::array<std::uint32_t, kMostClasses> next_{};  // change of a class
  std::array<std::uint64_t, kMostClasses> wait_{};  // elements of the class until it
  SegmentKeys keys_;
  std::array<std::uint32_t, kMostClasses> counts_{};
  std::array<std::uint64_t, kSegmentWords> bits_{};  // of the class at hand
  std::array<std::uint64_t, kSegmentWords> changed_{};
  std::array<T, kSegment> steps_;  // of the changed
};

}  // namespace weft::internal
