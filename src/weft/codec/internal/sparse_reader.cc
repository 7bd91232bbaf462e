#include <algorithm>
#include <limits>
#include <memory>

#include <fmt/core.h>

#include "weft/codec/internal/sparse_form.h"

namespace weft::internal {
namespace {

Error corrupt(std::string message) {
  return Error(ErrorCode::kCorrupt, "sparse: " + std::move(message));
}

// Bounds and counts.
template <typename T>
Result<void> read_classes(BitReader& bits, std::size_t changed, SparseStreams<T>& streams) {
  ClassBounds& classes = streams.classes;
  classes.classes = static_cast<std::size_t>(bits.get(4)) + 1;
  unsigned last = 0;
  for (std::size_t c = 0; c + 1 < classes.classes; ++c) {
    classes.bounds[c] = static_cast<std::uint8_t>(bits.get(8));
    if (classes.bounds[c] <= last) return corrupt("the bounds of the classes do not ascend");
    last = classes.bounds[c];
  }
  std::uint64_t sum = 0;
  for (std::size_t c = 0; c < classes.classes; ++c) {
    const auto width = static_cast<unsigned>(bits.get(6));
    if (width > 32) return corrupt(fmt::format("a count of {} bits", width));
    if (width > 0) sum += std::uint64_t{1} << (width - 1) | bits.get(width - 1);
    if (sum > changed) break;
    streams.first[c + 1] = static_cast<std::uint32_t>(sum);
  }
  std::fill(streams.first.begin() + static_cast<std::ptrdiff_t>(classes.classes),
            streams.first.end(), static_cast<std::uint32_t>(changed));
  if (sum != changed) {
    return corrupt(fmt::format("the classes do not have the {} changes of the header", changed));
  }
  return {};
}

std::uint64_t read_number(unsigned symbol, BitReader& bits) {
  const Octave& octave = kOctaves[symbol];
  return octave.first + bits.get(octave.extra_bits);
}

struct Decodings {
  SymbolTable::Decoding gaps, steps;
};

template <typename T>
Result<void> read_class(BitReader& bits, SymbolReader& symbols, Decodings& decodings,
                        std::size_t elements, std::span<std::uint32_t> gaps, std::span<T> steps) {
  for (SymbolTable::Decoding* decoding : {&decodings.gaps, &decodings.steps}) {
    bool ok = false;
    const SymbolTable table(bits, ok);
    if (!ok) return corrupt("a table that is none");
    table.fill(*decoding);
  }
  std::uint64_t passed = 0;  // cannot wrap: there are fewer than 2^32 gaps below 2^32
  bool fits = true;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const std::uint64_t gap = read_number(symbols.get(i % 2, decodings.gaps), bits);
    const std::uint64_t step = read_number(symbols.get(2 + i % 2, decodings.steps), bits);
    fits = fits && gap < elements && step < std::numeric_limits<T>::max();
    passed += gap + 1;
    gaps[i] = static_cast<std::uint32_t>(gap);
    steps[i] = static_cast<T>(step);
  }
  if (!fits || passed > elements) return corrupt("a change outside the block, or a step too far");
  return {};
}

}  // namespace

template <typename T>
Result<SparseStreams<T>> read_sparse(std::span<const std::byte> body, std::size_t elements,
                                     std::size_t changed) {
  SparseStreams<T> streams;
  if (changed == 0) {
    if (!body.empty()) return corrupt("no changes, and yet a body");
    return streams;
  }
  BitReader bits(body);
  SymbolReader symbols(body);
  if (auto done = read_classes(bits, changed, streams); !done) return done.error();
  streams.gaps.resize(changed);
  streams.steps.resize(changed);
  const auto decodings = std::make_unique<Decodings>();
  for (std::size_t c = 0; c < streams.classes.classes; ++c) {
    const std::size_t begin = streams.first[c];
    const std::size_t count = streams.first[c + 1] - begin;
    if (count == 0) continue;
    auto done = read_class<T>(bits, symbols, *decodings, elements,
                              std::span(streams.gaps).subspan(begin, count),
                              std::span(streams.steps).subspan(begin, count));
    if (!done) return done.error();
  }
  if (bits.rest_of_byte() != 0 || !symbols.is_finished(bits.bytes_read())) {
    return corrupt("bits and symbols do not end where they meet");
  }
  return streams;
}

template Result<SparseStreams<std::uint8_t>> read_sparse(std::span<const std::byte>, std::size_t,
                                                         std::size_t);
template Result<SparseStreams<std::uint16_t>> read_sparse(std::span<const std::byte>, std::size_t,
                                                          std::size_t);
template Result<SparseStreams<std::uint32_t>> read_sparse(std::span<const std::byte>, std::size_t,
                                                          std::size_t);
template Result<SparseStreams<std::uint64_t>> read_sparse(std::span<const std::byte>, std::size_t,
                                                          std::size_t);

}  // namespace weft::internal
