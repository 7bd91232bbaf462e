#pragma once
// The element types of safetensors, with their names there, in torch and on the command line.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace weft {

// Source: safetensors' format documentation, dtypes of whole bytes.
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

std::size_t dtype_size_bytes(DType dtype);
// "BF16", as a safetensors header spells it.
std::string_view dtype_name(DType dtype);
// "bfloat16", as torch and vLLM spell it.
std::string_view dtype_torch_name(DType dtype);
// Exactly a safetensors name; nothing else.
std::optional<DType> try_parse_dtype(std::string_view name);
// A torch name, with or without "torch." in front: "bfloat16", "half", "float".
std::optional<DType> try_parse_torch_dtype(std::string_view name);
// BF16, F16, F32, F64: types that hold weights and convert into each other.
bool is_float(DType dtype);

}  // namespace weft
