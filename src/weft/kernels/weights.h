#pragma once
// Weights as kernels read them: elements of a tensor, in their own dtype, where they lie in a
// weight set.

#include <cstddef>

#include "weft/tensor/dtype.h"

namespace weft::kernels {

// Borrowed, C order, little-endian, aligned to the element's size. `dtype` is kBF16, kF16 or kF32:
// a kF64 tensor is converted when it is loaded (convert.h). How many elements there are follows
// from the other arguments of the function that reads them.
struct Weights {
  const std::byte* data = nullptr;
  DType dtype = DType::kBF16;
};

}  // namespace weft::kernels
