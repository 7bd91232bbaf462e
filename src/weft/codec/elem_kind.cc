#include "weft/codec/elem_kind.h"

namespace weft {

ElemKind elem_kind_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return ElemKind::kBits8;
    case DType::kI16:
    case DType::kU16:
      return ElemKind::kBits16;
    case DType::kI32:
    case DType::kU32:
      return ElemKind::kBits32;
    case DType::kI64:
    case DType::kU64:
      return ElemKind::kBits64;
    case DType::kF8E5M2:
      return ElemKind::kF8E5M2;
    case DType::kF8E4M3:
      return ElemKind::kF8E4M3;
    case DType::kF16:
      return ElemKind::kF16;
    case DType::kBF16:
      return ElemKind::kBF16;
    case DType::kF32:
      return ElemKind::kF32;
    case DType::kF64:
      return ElemKind::kF64;
  }
  return ElemKind::kBits8;
}

}  // namespace weft
