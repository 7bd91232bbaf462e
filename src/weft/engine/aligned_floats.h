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

// In huge pages where it is large and the kernel has them: keys and values lie scattered, and each
// small page is a walk through the page table. Throws std::bad_alloc.
AlignedFloats make_aligned_floats(std::size_t count);

}  // namespace weft
