#pragma once
// What sequences that run do when the weights change under them.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace weft {

enum class OnUpdate : std::uint8_t {
  kContinue,   // go on, with the keys and values they have
  kRecompute,  // go on, after computing their keys and values again with the new weights
  kFinish,     // end on the old set, which stays until then; new sequences use the new one
  kAbort,      // end now
};

inline constexpr std::array<std::pair<OnUpdate, std::string_view>, 4> kOnUpdateNames = {
    {{OnUpdate::kContinue, "continue"},
     {OnUpdate::kRecompute, "recompute"},
     {OnUpdate::kFinish, "finish"},
     {OnUpdate::kAbort, "abort"}}};

// By its name on the wire and in flags.
constexpr std::optional<OnUpdate> try_parse_on_update(std::string_view name) {
  for (const auto& [value, known] : kOnUpdateNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

// What a third version does that comes while sequences still end on the retired one (kFinish).
enum class OnThird : std::uint8_t {
  kWait,       // it waits until they have ended
  kRefuse,     // it is told so: kConflict, to be tried again
  kRecompute,  // they go on with the serving set, so that it can begin soon
};

}  // namespace weft
