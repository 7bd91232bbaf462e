#include <algorithm>
#include <bit>
#include <memory>
#include <span>

#include "weft/base/check.h"
#include "weft/codec/internal/sparse_form.h"

namespace weft::internal {
namespace {

// So many segments tell the keys' shares well enough: the classes are chosen by them.
constexpr std::size_t kSampledSegments = 256;

void sample_population(std::span<const std::byte> base, ElemKind kind,
                       std::span<KeyStatistics, kKeys> keys) {
  const std::size_t elem_bytes = traits_of(kind).elem_bytes;
  const std::size_t elements = base.size() / elem_bytes;
  const std::size_t stride = std::max<std::size_t>(1, elements / kSegment / kSampledSegments);
  std::array<std::uint32_t, kKeys> sampled{};
  std::size_t total = 0;
  SegmentKeys segment;
  for (std::size_t begin = 0; begin < elements; begin += stride * kSegment) {
    const std::size_t count = std::min(kSegment, elements - begin);
    segment_keys(base.data() + begin * elem_bytes, kind, count, segment);
    for (std::size_t i = 0; i < count; ++i) {
      ++sampled[static_cast<std::uint8_t>(segment[i]) ^ 0x80];
    }
    total += count;
  }
  for (std::size_t key = 0; key < kKeys; ++key) {
    keys[key].population =
        std::max(std::uint64_t{sampled[key]} * elements / total, keys[key].changed);
  }
}

// The gaps or the steps of one class, and the table that codes them.
template <typename T>
class CodedNumbers {
 public:
  explicit CodedNumbers(std::span<const T> numbers)
      : numbers_(numbers), symbols_(symbols_of(numbers)), table_(counts_of(symbols_)) {
    std::uint32_t start = 0;
    for (unsigned s = 0; s < kSymbols; ++s) {
      starts_[s] = start;
      start += table_.frequency(s);
    }
  }
  void write_table(BitWriter& bits) const { table_.write(bits); }
  void write_extra(std::size_t i, BitWriter& bits) const {
    const Octave& octave = kOctaves[symbols_[i]];
    bits.put(numbers_[i] - octave.first, octave.extra_bits);
  }
  void write_symbol(std::size_t i, std::size_t state, SymbolWriter& symbols) const {
    const unsigned symbol = symbols_[i];
    symbols.put(state, starts_[symbol], table_.frequency(symbol));
  }

 private:
  static std::vector<std::uint8_t> symbols_of(std::span<const T> numbers) {
    std::vector<std::uint8_t> symbols(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      symbols[i] = static_cast<std::uint8_t>(symbol_of(numbers[i]));
    }
    return symbols;
  }
  static std::array<std::uint32_t, kSymbols> counts_of(std::span<const std::uint8_t> symbols) {
    // In turns, so that equal neighbours do not wait for each other.
    std::array<std::array<std::uint32_t, kSymbols>, 2> counts{};
    for (std::size_t i = 0; i < symbols.size(); ++i) ++counts[i % 2][symbols[i]];
    for (unsigned s = 0; s < kSymbols; ++s) counts[0][s] += counts[1][s];
    return counts[0];
  }

  std::span<const T> numbers_;
  std::vector<std::uint8_t> symbols_;
  SymbolTable table_;
  std::array<std::uint32_t, kSymbols> starts_{};
};

std::array<std::uint8_t, kKeys> class_of_keys(const ClassBounds& classes) {
  std::array<std::uint8_t, kKeys> out{};
  for (std::size_t key = 0, c = 0; key < kKeys; ++key) {
    while (c + 1 < classes.classes && key >= classes.bounds[c]) ++c;
    out[key] = static_cast<std::uint8_t>(c);
  }
  return out;
}

// The class of each change, and the changes sorted by class.
template <typename T>
class Sorter {
 public:
  Sorter(const Changes<T>& changes, ElemKind kind, const ClassBounds& classes)
      : changes_(changes), rule_(kind), class_of_(class_of_keys(classes)) {
    streams_.classes = classes;
    std::array<std::uint32_t, kMostClasses> counts{};
    for (const T old : changes.old) ++counts[class_of(old)];
    for (std::size_t c = 0; c < kMostClasses; ++c) {
      streams_.first[c + 1] = streams_.first[c] + counts[c];
    }
    streams_.gaps.resize(changes.old.size());
    streams_.steps.resize(changes.old.size());
  }

  SparseStreams<T> sort(std::span<const std::byte> base, ElemKind kind) && {
    if (streams_.classes.classes == 1) return std::move(*this).take_in_order();
    const std::size_t elements = base.size() / sizeof(T);
    std::ranges::copy_n(streams_.first.begin(), kMostClasses, cursors_.begin());
    for (std::size_t begin = 0; next_ < changes_.positions.size(); begin += kSegment) {
      const std::size_t count = std::min(kSegment, elements - begin);
      prefetch_ahead(base.data() + begin * sizeof(T), kSegment * sizeof(T));
      segment_counts(base.data() + begin * sizeof(T), kind, count, streams_.classes, keys_,
                     counts_);
      take_segment(begin, begin + count);
      for (std::size_t c = 0; c < streams_.classes.classes; ++c) seen_[c] += counts_[c];
    }
    return std::move(streams_);
  }

 private:
  std::size_t class_of(T old) const { return class_of_[rule_.key(old)]; }

  // All of one class: there is nothing to count.
  SparseStreams<T> take_in_order() && {
    std::uint32_t expected = 0;
    for (std::size_t i = 0; i < changes_.positions.size(); ++i) {
      streams_.gaps[i] = changes_.positions[i] - expected;
      streams_.steps[i] = rule_.step_number(changes_.old[i], changes_.next[i]);
      expected = changes_.positions[i] + 1;
    }
    return std::move(streams_);
  }

  void take_segment(std::size_t begin, std::size_t end) {
    std::array<InSegment, kSegment> elements;
    std::array<std::uint8_t, kSegment> ranks;
    std::size_t count = 0;
    for (std::size_t i = next_; i < changes_.positions.size() && changes_.positions[i] < end; ++i) {
      elements[count++] = {static_cast<std::uint8_t>(changes_.positions[i] - begin),
                           static_cast<std::uint8_t>(class_of(changes_.old[i]))};
    }
    segment_ranks(keys_, streams_.classes, std::span(elements).first(count), ranks.data());
    for (std::size_t i = 0; i < count; ++i, ++next_) {
      const std::size_t c = elements[i].class_index;
      const std::uint32_t rank = seen_[c] + ranks[i];
      const std::uint32_t at = cursors_[c]++;
      streams_.gaps[at] = rank - expected_[c];
      streams_.steps[at] = rule_.step_number(changes_.old[next_], changes_.next[next_]);
      expected_[c] = rank + 1;
    }
  }

  const Changes<T>& changes_;
  ElementRule<T> rule_;
  std::array<std::uint8_t, kKeys> class_of_;
  SparseStreams<T> streams_;
  std::size_t next_ = 0;  // change
  std::array<std::uint32_t, kMostClasses> cursors_{};
  std::array<std::uint32_t, kMostClasses> seen_{};      // elements before the segment
  std::array<std::uint32_t, kMostClasses> expected_{};  // rank with a gap of 0
  SegmentKeys keys_;
  ClassCounts counts_{};
};

void write_classes(const ClassBounds& classes, std::span<const std::uint32_t> first,
                   BitWriter& bits) {
  bits.put(classes.classes - 1, 4);
  for (std::size_t c = 0; c + 1 < classes.classes; ++c) bits.put(classes.bounds[c], 8);
  for (std::size_t c = 0; c < classes.classes; ++c) {
    const std::uint32_t count = first[c + 1] - first[c];
    const auto width = static_cast<unsigned>(std::bit_width(count));
    bits.put(width, 6);
    if (width > 1) bits.put(count - (1u << (width - 1)), width - 1);
  }
}

template <typename T>
std::vector<std::byte> write_streams(const SparseStreams<T>& streams) {
  BitWriter bits;
  SymbolWriter symbols;
  write_classes(streams.classes, streams.first, bits);
  struct Coded {
    std::size_t count;
    CodedNumbers<std::uint32_t> gaps;
    CodedNumbers<T> steps;
  };
  std::vector<Coded> coded;
  for (std::size_t c = 0; c < streams.classes.classes; ++c) {
    const std::size_t begin = streams.first[c];
    const std::size_t count = streams.first[c + 1] - begin;
    if (count == 0) continue;
    const Coded& a =
        coded.emplace_back(Coded{count, CodedNumbers(std::span(streams.gaps).subspan(begin, count)),
                                 CodedNumbers(std::span(streams.steps).subspan(begin, count))});
    a.gaps.write_table(bits);
    a.steps.write_table(bits);
    for (std::size_t i = 0; i < count; ++i) {
      a.gaps.write_extra(i, bits);
      a.steps.write_extra(i, bits);
    }
  }
  for (std::size_t c = coded.size(); c-- > 0;) {
    const Coded& a = coded[c];
    for (std::size_t i = a.count; i-- > 0;) {
      a.steps.write_symbol(i, 2 + i % 2, symbols);
      a.gaps.write_symbol(i, i % 2, symbols);
    }
  }
  std::vector<std::byte> body = std::move(bits).finish();
  symbols.finish(body);
  return body;
}

}  // namespace

template <typename T>
ClassPlan plan_sparse(const Changes<T>& changes, std::span<const std::byte> base, ElemKind kind) {
  const auto keys = std::make_unique<std::array<KeyStatistics, kKeys>>();
  const ElementRule<T> rule(kind);
  for (std::size_t i = 0; i < changes.old.size(); ++i) {
    KeyStatistics& key = (*keys)[rule.key(changes.old[i])];
    ++key.changed;
    ++key.steps[symbol_of(rule.step_number(changes.old[i], changes.next[i]))];
  }
  sample_population(base, kind, *keys);
  return plan_classes(*keys);
}

template <typename T>
std::vector<std::byte> write_sparse(const Changes<T>& changes, std::span<const std::byte> base,
                                    ElemKind kind, const ClassBounds& classes) {
  return write_streams(Sorter<T>(changes, kind, classes).sort(base, kind));
}

#define WEFT_INSTANTIATE(T)                                                                   \
  template ClassPlan plan_sparse(const Changes<T>&, std::span<const std::byte>, ElemKind);    \
  template std::vector<std::byte> write_sparse(const Changes<T>&, std::span<const std::byte>, \
                                               ElemKind, const ClassBounds&)
WEFT_INSTANTIATE(std::uint8_t);
WEFT_INSTANTIATE(std::uint16_t);
WEFT_INSTANTIATE(std::uint32_t);
WEFT_INSTANTIATE(std::uint64_t);

}  // namespace weft::internal
