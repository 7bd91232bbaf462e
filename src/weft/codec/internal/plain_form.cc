#include "weft/codec/internal/plain_form.h"

#include <algorithm>

#include <fmt/core.h>

#include "weft/codec/internal/load_store.h"

namespace weft::internal {
namespace {

// A gap of so many elements or more has this byte, and stands whole among the long ones.
constexpr std::uint32_t kLongGap = 255;

}  // namespace

std::vector<std::byte> write_plain(std::span<const std::uint32_t> positions,
                                   std::span<const std::byte> values) {
  std::vector<std::byte> body(positions.size());
  std::vector<std::uint32_t> long_gaps;
  std::uint32_t next = 0;  // the first element that may change
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::uint32_t gap = positions[i] - next;
    body[i] = static_cast<std::byte>(std::min(gap, kLongGap));
    if (gap >= kLongGap) long_gaps.push_back(gap);
    next = positions[i] + 1;
  }
  for (const auto part : {std::as_bytes(std::span(long_gaps)), values}) {
    body.insert(body.end(), part.begin(), part.end());
  }
  return body;
}

Result<PlainStreams> read_plain(std::span<const std::byte> body, std::size_t elem_bytes,
                                std::size_t elements, std::size_t changed) {
  const auto short_gaps = body.first(std::min(changed, body.size()));
  const auto long_gaps =
      static_cast<std::size_t>(std::ranges::count(short_gaps, static_cast<std::byte>(kLongGap)));
  const std::size_t values_at = changed + sizeof(std::uint32_t) * long_gaps;
  if (body.size() != values_at + changed * elem_bytes) {
    return Error(ErrorCode::kCorrupt, fmt::format("plain: {} bytes for {} changes, {} far away",
                                                  body.size(), changed, long_gaps));
  }
  PlainStreams streams{std::vector<std::uint32_t>(changed), body.subspan(values_at)};
  const std::byte* next_long = body.data() + changed;
  std::uint64_t passed = 0;  // cannot wrap: there are fewer than 2^32 gaps below 2^32
  bool fits = true;
  for (std::size_t i = 0; i < changed; ++i) {
    auto gap = std::to_integer<std::uint32_t>(short_gaps[i]);
    if (gap == kLongGap) {
      gap = load<std::uint32_t>(next_long);
      next_long += sizeof(gap);
      fits = fits && gap >= kLongGap;
    }
    passed += std::uint64_t{gap} + 1;
    streams.gaps[i] = gap;
  }
  if (fits && passed <= elements) return streams;
  return Error(ErrorCode::kCorrupt, "plain: a change outside the block, or a short gap as a long");
}

}  // namespace weft::internal
