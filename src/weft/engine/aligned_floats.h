#pragma once
// Arrays of floats that begin at a cache line, as kernels like them. Not initialised: memory that
// is never used is never touched.

#include <cstddef>
#include <memory>
#include <new>

namespace weft {

inline constexpr std::align_val_t kFloatsAlignment{64};

struct AlignedDelete {
  void operator()(float* floats) const { ::operator delete[](floats, kFloatsAlignment); }
};
using AlignedFloats = std::unique_ptr<float[], AlignedDelete>;

// Throws std::bad_alloc.
inline AlignedFloats make_aligned_floats(std::size_t count) {
  return AlignedFloats(new (kFloatsAlignment) float[count]);
}

}  // namespace weft
