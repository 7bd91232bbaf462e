#include "flag_kinds.h"

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

}  // namespace weft
