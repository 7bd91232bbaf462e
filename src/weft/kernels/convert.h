#pragma once
// Converts between bf16, fp16, fp32 and fp64. Pure, no allocation.

#include <cstddef>
#include <span>

#include "weft/tensor/dtype.h"

namespace weft::kernels {

// Converts all of `from` into `to`, both little-endian and of any alignment, not overlapping.
// Rounds once, to nearest even; what is too large becomes infinity, NaN stays NaN (quiet, sign
// kept). Equal types are copied. Requires: is_float() of both, and as many elements in `to` as in
// `from`.
void convert(std::span<const std::byte> from, DType from_dtype, std::span<std::byte> to,
             DType to_dtype);

// The same for a row of weights used as activations (an embedding): fp32 out.
void convert_to_f32(std::span<const std::byte> from, DType from_dtype, std::span<float> to);

}  // namespace weft::kernels
