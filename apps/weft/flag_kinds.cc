#include "flag_kinds.h"

#include <algorithm>
#include <charconv>

#include <fmt/core.h>

#include "weft/base/wording.h"
#include "weft/digest/digest.h"
#include "weft/protocol/block_frame.h"

namespace weft {

void add_bytes(CLI::App& command, const std::string& name, std::uint64_t& value,
               const std::string& what, std::int64_t least) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
  command
      .add_option_function<std::int64_t>(
          name, [&value](std::int64_t bytes) { value = static_cast<std::uint64_t>(bytes); },
          what + "; bytes, or as 4GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(least, kMaxBytes))
      ->option_text("BYTES");
}

std::string check_at_least_one(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end && value > 0) return "";
  return fmt::format("expected a number from 1 on, not {}", printable(text));
}

std::string check_text(const std::string& text) {
  return printable(text) == text ? "" : "expected UTF-8 without control characters";
}

std::string check_id(const std::string& text) {
  return try_parse_digest(text) ? "" : "expected an id: blake3: and 64 lower-case hex digits";
}

std::string check_session(const std::string& text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
  if (is_ascii && !text.empty() && text.size() <= kMaxSessionBytes) return "";
  return fmt::format("expected 1 to {} printable ASCII characters", kMaxSessionBytes);
}

CLI::Validator between(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value = 0;
    const bool fits =
        CLI::detail::lexical_cast(text, value) && value >= least && value <= most;  // no NaN does
    return fits ? "" : fmt::format("expected {} to {}, not {}", least, most, printable(text));
  };
  return CLI::Validator(check, fmt::format("{} to {}", least, most));
}

}  // namespace weft
