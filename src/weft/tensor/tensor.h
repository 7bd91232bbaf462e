#pragma once
// What a tensor is called and looks like, and views of its bytes. Canonical layout throughout: full
// (unsharded) shape, C order, little-endian.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/dtype.h"

namespace weft {

using Shape = std::vector<std::uint64_t>;

// "[272, 576]".
std::string shape_text(const Shape& shape);
// The number of elements; kInvalidArgument if the product of the dimensions, or of any of them,
// overflows 64 bits. An empty shape is a scalar: 1.
Result<std::uint64_t> shape_elems(const Shape& shape);

// Name, dtype and shape. A value.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  bool operator==(const TensorSpec&) const = default;
};
// Elements times the dtype's size; kInvalidArgument, naming the tensor, if that overflows 64 bits.
Result<std::uint64_t> tensor_size_bytes(const TensorSpec& spec);

// A tensor and its bytes. `data` is borrowed: whoever hands out the view says what keeps it alive.
struct TensorView {
  TensorSpec spec;
  std::span<const std::byte> data;
};

}  // namespace weft
