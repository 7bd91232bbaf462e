#include "weft/engine/aligned_floats.h"

#include <cstdint>

#include <sys/mman.h>

namespace weft {

AlignedFloats make_aligned_floats(std::size_t count) {
  AlignedFloats floats(new (kFloatsAlignment) float[count]);
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(floats.get());
  const std::uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + count * sizeof(float)) / kHugePage * kHugePage;
  // Advice: where it is not taken, pages are small.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return floats;
}

}  // namespace weft
