#include "weft/tensor/tensor.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace weft {

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::uint64_t> shape_elems(const Shape& shape) {
  std::uint64_t elems = 1;
  bool empty = false;
  for (const std::uint64_t dim : shape) {
    // A zero must not hide an overflow of the others: [2^63, 2, 0] is refused too.
    if (dim == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(elems, dim, &elems)) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("shape {} has more than 2^64 elements", shape_text(shape)));
    }
  }
  return empty ? 0 : elems;
}

Result<std::uint64_t> tensor_size_bytes(const TensorSpec& spec) {
  auto elems = shape_elems(spec.shape);
  if (!elems) return std::move(elems).error().with_context(spec.name);
  std::uint64_t size_bytes = 0;
  if (__builtin_mul_overflow(*elems, dtype_size_bytes(spec.dtype), &size_bytes)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: {} of {} has more than 2^64 bytes", spec.name,
                             shape_text(spec.shape), dtype_name(spec.dtype)));
  }
  return size_bytes;
}

}  // namespace weft
