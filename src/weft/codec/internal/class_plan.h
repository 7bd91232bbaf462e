#pragma once
// Which keys share a class: the encoder's choice, docs/formats/delta.md, "Classes".

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/codec/internal/elements.h"
#include "weft/codec/internal/entropy.h"
#include "weft/codec/internal/scan.h"

namespace weft::internal {

// What is known of the elements of one key.
struct KeyStatistics {
  std::uint64_t population = 0;  // an estimate, at least `changed`
  std::uint64_t changed = 0;
  std::array<std::uint32_t, kSymbols> steps{};  // of the changed, by the symbol of their step
};

struct ClassPlan {
  ClassBounds classes;
  std::uint64_t body_bytes = 0;  // an estimate
};

// Neighbouring keys share a class where that takes fewer bits, tables included, or hardly more.
ClassPlan plan_classes(std::span<const KeyStatistics, kKeys> keys);

}  // namespace weft::internal
