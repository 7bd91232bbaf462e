#include "weft/codec/internal/entropy.h"

#include <algorithm>
#include <numeric>

namespace weft::internal {
namespace {

// 0, then two an octave: 1, 2, 3, 4, 6, 8, 12, ..., 2048.
constexpr unsigned kWeightCodes = 23;
constexpr std::uint32_t weight_of(unsigned code) {
  if (code < 4) return code;
  return (2u | (code & 1)) << (code / 2 - 1);
}
static_assert(weight_of(4) == 4 && weight_of(5) == 6 && weight_of(kWeightCodes - 1) == kTableSize);

// The code whose weight is nearest to count / total * kTableSize, as a ratio; at least 1.
unsigned nearest_code(std::uint64_t count, std::uint64_t total) {
  constexpr std::uint64_t kScale = 256;
  const std::uint64_t ideal = count * kTableSize * kScale / total;
  unsigned code = 1;
  // From one weight to the next where the ideal is above their geometric mean.
  while (code + 1 < kWeightCodes) {
    const std::uint64_t product = std::uint64_t{weight_of(code)} * weight_of(code + 1);
    if (ideal * ideal < product * kScale * kScale) break;
    ++code;
  }
  return code;
}

constexpr unsigned kLogBits = 8;
// log2(1 + i / 256) in 1/65536, by squaring: each squaring doubles the logarithm.
constexpr std::array<std::uint32_t, (1u << kLogBits) + 1> make_logs() {
  std::array<std::uint32_t, (1u << kLogBits) + 1> logs{};
  for (std::uint32_t i = 0; i < (1u << kLogBits); ++i) {
    std::uint64_t x = (std::uint64_t{1} << 31) + (std::uint64_t{i} << (31 - kLogBits));  // 1.31
    std::uint32_t log = 0;
    for (int bit = 15; bit >= 0; --bit) {
      x = (x * x) >> 31;
      if (x >> 32 != 0) {
        log |= 1u << bit;
        x >>= 1;
      }
    }
    logs[i] = log;
  }
  logs[1u << kLogBits] = 1u << 16;
  return logs;
}
constexpr auto kLogs = make_logs();

}  // namespace

void BitWriter::write_word() {
  bytes_.resize(bytes_.size() + 4);
  store(bytes_.data() + bytes_.size() - 4, static_cast<std::uint32_t>(pending_));
  pending_ >>= 32;
  pending_bits_ -= 32;
}

std::vector<std::byte> BitWriter::finish() && {
  for (; pending_bits_ > 0; pending_bits_ -= std::min(pending_bits_, 8u)) {
    bytes_.push_back(static_cast<std::byte>(pending_));
    pending_ >>= 8;
  }
  return std::move(bytes_);
}

void BitReader::refill() {
  if (at_ + 8 <= bytes_.size()) {
    held_ |= load<std::uint64_t>(bytes_.data() + at_) << held_bits_;
    const unsigned taken = (63 - held_bits_) / 8;
    at_ += taken;
    held_bits_ += 8 * taken;
    held_ &= (std::uint64_t{1} << held_bits_) - 1;  // what is not counted as held
    return;
  }
  for (; held_bits_ <= 55; held_bits_ += 8, ++at_) {
    const std::byte next = at_ < bytes_.size() ? bytes_[at_] : std::byte{0};
    held_ |= std::to_integer<std::uint64_t>(next) << held_bits_;
  }
}

SymbolTable::SymbolTable(std::span<const std::uint32_t, kSymbols> counts) {
  const auto total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  for (unsigned s = 0; s < kSymbols; ++s) {
    if (counts[s] == 0) continue;
    weight_codes_[s] = static_cast<std::uint8_t>(nearest_code(counts[s], total));
    used_ = s + 1;
  }
  normalise();
}

SymbolTable::SymbolTable(BitReader& bits, bool& ok) {
  used_ = static_cast<unsigned>(bits.get(7)) + 1;
  ok = true;
  for (unsigned s = 0; s < used_; ++s) {
    const auto code = static_cast<std::uint8_t>(bits.get(5));
    ok = ok && code < kWeightCodes;
    weight_codes_[s] = ok ? code : std::uint8_t{1};
  }
  ok = ok && weight_codes_[used_ - 1] != 0;  // so that there is one way to say it
  if (ok) normalise();
}

void SymbolTable::write(BitWriter& bits) const {
  bits.put(used_ - 1, 7);
  for (unsigned s = 0; s < used_; ++s) bits.put(weight_codes_[s], 5);
}

void SymbolTable::normalise() {
  std::uint64_t weights = 0;
  for (unsigned s = 0; s < used_; ++s) weights += weight_of(weight_codes_[s]);
  std::uint32_t sum = 0;
  for (unsigned s = 0; s < used_; ++s) {
    const std::uint32_t weight = weight_of(weight_codes_[s]);
    if (weight == 0) continue;
    const auto scaled = static_cast<std::uint32_t>(std::uint64_t{weight} * kTableSize / weights);
    frequencies_[s] = std::max(scaled, 1u);
    sum += frequencies_[s];
  }
  // The first of the largest gives or takes what is over, one by one where that makes another the
  // largest. There are fewer symbols than kTableSize, so the largest has always more than one.
  for (; sum > kTableSize; --sum) --*std::ranges::max_element(frequencies_);
  *std::ranges::max_element(frequencies_) += kTableSize - sum;
}

void SymbolTable::fill(Decoding& decoding) const {
  std::uint32_t start = 0;
  for (unsigned s = 0; s < used_; ++s) {
    const std::uint32_t entry = s | (frequencies_[s] - 1) << 7;
    for (std::uint32_t i = 0; i < frequencies_[s]; ++i) decoding[start + i] = entry | i << 18;
    start += frequencies_[s];
  }
}

void SymbolWriter::finish(std::vector<std::byte>& body) const {
  const auto append = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    body.insert(body.end(), bytes.begin(), bytes.end());
  };
  append(words_);
  append(states_);
}

SymbolReader::SymbolReader(std::span<const std::byte> body) : body_(body) {
  if (body.size() < sizeof(states_)) {
    is_short_ = true;
    return;
  }
  left_ = body.size() - sizeof(states_);
  std::memcpy(states_.data(), body.data() + left_, sizeof(states_));
}

bool SymbolReader::is_finished(std::size_t bytes_of_bits) const {
  return !is_short_ && left_ == bytes_of_bits &&
         std::ranges::all_of(states_, [](std::uint32_t x) { return x == kStateStart; });
}

std::uint64_t log2_fixed(std::uint64_t x) {
  const unsigned whole = static_cast<unsigned>(std::bit_width(x)) - 1;
  const std::uint64_t mantissa = (x << (63 - whole)) & ~(std::uint64_t{1} << 63);
  const std::uint64_t i = mantissa >> (63 - kLogBits);
  const std::uint64_t between = (mantissa >> (63 - kLogBits - 16)) & 0xFFFF;
  return (std::uint64_t{whole} << 16) + kLogs[i] + ((kLogs[i + 1] - kLogs[i]) * between >> 16);
}

}  // namespace weft::internal
