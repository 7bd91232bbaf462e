#pragma once
// The entropy coder of delta payloads: docs/formats/delta.md, "Numbers", "Tables" and "Streams".
//
// A number is a symbol, coded with a static table, and the bits that the symbol leaves open. Bits
// stand in the body from its front on, the words of the symbols' coder from its end backwards; the
// two meet. The symbols' coder is rANS with four states in turns: J. Duda, Asymmetric numeral
// systems, arXiv 1311.2540; F. Giesen, Interleaved entropy coders, arXiv 1402.3392.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/codec/internal/load_store.h"

namespace weft::internal {

// Two symbols an octave: 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, 16-23, ...
inline constexpr std::size_t kSymbols = 128;

struct Octave {
  std::uint64_t first;      // the least number of the symbol
  std::uint8_t extra_bits;  // how many bits choose among its numbers
};
constexpr std::array<Octave, kSymbols> make_octaves() {
  std::array<Octave, kSymbols> octaves{};
  for (unsigned s = 0; s < kSymbols; ++s) {
    const unsigned extra = s < 4 ? 0 : s / 2 - 1;
    octaves[s] = {s < 2 ? s : std::uint64_t{2 | (s & 1)} << extra,
                  static_cast<std::uint8_t>(extra)};
  }
  return octaves;
}
inline constexpr std::array<Octave, kSymbols> kOctaves = make_octaves();

constexpr unsigned symbol_of(std::uint64_t number) {
  if (number < 4) return static_cast<unsigned>(number);
  const unsigned log = static_cast<unsigned>(std::bit_width(number)) - 1;
  return 2 * log + static_cast<unsigned>((number >> (log - 1)) & 1);
}

// Bits, the lowest of a byte first.
class BitWriter {
 public:
  // The low `count` (at most 63) bits of `value`, which has no others.
  void put(std::uint64_t value, unsigned count) {
    if (count > 32) {
      put(value & 0xFFFFFFFFu, 32);
      return put(value >> 32, count - 32);
    }
    pending_ |= value << pending_bits_;
    pending_bits_ += count;
    if (pending_bits_ >= 32) write_word();
  }
  // Fills the last byte with zeros.
  std::vector<std::byte> finish() &&;

 private:
  void write_word();

  std::vector<std::byte> bytes_;
  std::uint64_t pending_ = 0;
  unsigned pending_bits_ = 0;
};

// Past the end it gives zeros, and bytes_read() is more than there are.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // `count`: at most 63.
  std::uint64_t get(unsigned count) {
    if (count > 32) {
      const std::uint64_t low = get(32);
      return low | get(count - 32) << 32;
    }
    if (count > held_bits_) refill();
    const std::uint64_t value = held_ & ((std::uint64_t{1} << count) - 1);
    held_ >>= count;
    held_bits_ -= count;
    return value;
  }
  // Of which the last may be read in part.
  std::size_t bytes_read() const { return at_ - held_bits_ / 8; }
  // What is left of the last byte that was begun; zeros in a right payload.
  std::uint64_t rest_of_byte() const {
    return held_ & ((std::uint64_t{1} << (held_bits_ % 8)) - 1);
  }

 private:
  void refill();

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;  // the first byte that is not held; runs on past the end
  std::uint64_t held_ = 0;
  unsigned held_bits_ = 0;
};

// Frequencies of a table add up to this.
inline constexpr unsigned kTableBits = 11;
inline constexpr std::uint32_t kTableSize = 1u << kTableBits;

// How often symbols come. Transmitted coarsely, two steps an octave, so that a table is short.
class SymbolTable {
 public:
  // The best for these counts, of which at least one is not zero.
  explicit SymbolTable(std::span<const std::uint32_t, kSymbols> counts);
  // Reads what write() wrote. `ok` is false where that is no table.
  SymbolTable(BitReader& bits, bool& ok);

  void write(BitWriter& bits) const;
  std::uint32_t frequency(unsigned symbol) const { return frequencies_[symbol]; }

  // For each value of a state's low bits: symbol, frequency - 1 << 7, value - start << 18.
  using Decoding = std::array<std::uint32_t, kTableSize>;
  void fill(Decoding& decoding) const;

 private:
  void normalise();

  unsigned used_ = 0;                                  // symbols below this may come
  std::array<std::uint8_t, kSymbols> weight_codes_{};  // 0: does not come
  std::array<std::uint32_t, kSymbols> frequencies_{};
};
// Bits that SymbolTable::write() takes for symbols up to `last`.
constexpr std::uint64_t table_bits(unsigned last) {
  return 7 + 5 * (std::uint64_t{last} + 1);
}

inline constexpr std::size_t kStates = 4;
inline constexpr std::uint32_t kStateStart = 1u << 16;

// Takes symbols in the reverse of the order in which they are read.
class SymbolWriter {
 public:
  SymbolWriter() { states_.fill(kStateStart); }
  void put(std::size_t state, std::uint32_t start, std::uint32_t frequency) {
    std::uint32_t& x = states_[state];
    if (x >= std::uint64_t{frequency} << (32 - kTableBits)) {
      words_.push_back(static_cast<std::uint16_t>(x));
      x >>= 16;
    }
    x = ((x / frequency) << kTableBits) + x % frequency + start;
  }
  // Appends words and states.
  void finish(std::vector<std::byte>& body) const;

 private:
  std::array<std::uint32_t, kStates> states_;
  std::vector<std::uint16_t> words_;
};

// Past the front it gives zeros, and is_finished() is false.
class SymbolReader {
 public:
  explicit SymbolReader(std::span<const std::byte> body);

  unsigned get(std::size_t state, const SymbolTable::Decoding& decoding) {
    std::uint32_t& x = states_[state];
    const std::uint32_t entry = decoding[x & (kTableSize - 1)];
    x = (((entry >> 7) & (kTableSize - 1)) + 1) * (x >> kTableBits) + (entry >> 18);
    if (x < kStateStart) x = x << 16 | next_word();
    return entry & (kSymbols - 1);
  }
  // All was read, and it was what a writer began with.
  bool is_finished(std::size_t bytes_of_bits) const;

 private:
  std::uint32_t next_word() {
    if (left_ < 2) {
      is_short_ = true;
      return 0;
    }
    left_ -= 2;
    return load<std::uint16_t>(body_.data() + left_);
  }

  std::span<const std::byte> body_;
  std::size_t left_ = 0;  // bytes before what was read
  bool is_short_ = false;
  std::array<std::uint32_t, kStates> states_{};
};

// log2(x) in 1/65536, x > 0. In integers, so that an encoder chooses alike everywhere.
std::uint64_t log2_fixed(std::uint64_t x);

}  // namespace weft::internal
