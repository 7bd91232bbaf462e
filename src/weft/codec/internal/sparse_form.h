#pragma once
// The body of a sparse delta: docs/formats/delta.md, "Sparse". T is the unsigned integer of the
// element's size.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/base/result.h"
#include "weft/codec/internal/changes.h"
#include "weft/codec/internal/class_plan.h"

namespace weft::internal {

// Classes for these changes of `base`, and about how many bytes the body will have.
template <typename T>
ClassPlan plan_sparse(const Changes<T>& changes, std::span<const std::byte> base, ElemKind kind);
template <typename T>
std::vector<std::byte> write_sparse(const Changes<T>& changes, std::span<const std::byte> base,
                                    ElemKind kind, const ClassBounds& classes);

// What a body says, which is not yet where the changes are: that follows from the base.
template <typename T>
struct SparseStreams {
  ClassBounds classes;
  // Class c has the changes first[c] to first[c + 1]; none those that there are not. Each passes
  // over `gaps` elements of its class since the one before, and changes the next by the step with
  // that number.
  std::array<std::uint32_t, kMostClasses + 1> first{};
  std::vector<std::uint32_t> gaps;
  std::vector<T> steps;
};
// Errors: kCorrupt. Requires: `changed` is at most `elements`.
template <typename T>
Result<SparseStreams<T>> read_sparse(std::span<const std::byte> body, std::size_t elements,
                                     std::size_t changed);

}  // namespace weft::internal
