#pragma once
// What versions of a run are called: step 7 publishes "step-7".

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

inline std::string version_label(std::uint64_t version) {
  return "step-" + std::to_string(version);
}

// Nothing for a label that no run gives.
inline std::optional<std::uint64_t> try_version_of(std::string_view label) {
  constexpr std::string_view kPrefix = "step-";
  if (!label.starts_with(kPrefix)) return std::nullopt;
  label.remove_prefix(kPrefix.size());
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), version);
  if (error != std::errc() || end != label.data() + label.size()) return std::nullopt;
  return version;
}

}  // namespace weft
