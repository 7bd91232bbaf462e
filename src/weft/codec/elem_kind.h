#pragma once
// How the elements of a tensor change, by its dtype: docs/formats/delta.md, "Elements".

#include "weft/codec/delta_codec.h"
#include "weft/tensor/dtype.h"

namespace weft {

// Of a tensor's elements. Files, which have no dtype, are bytes of which nothing is known: kBits8.
ElemKind elem_kind_of(DType dtype);

}  // namespace weft
