#include "weft/tensor/dtype.h"

#include <array>
#include <cstddef>

namespace weft {
namespace {

struct Entry {
  DType dtype;
  std::size_t size_bytes;
  std::string_view name;
  std::string_view torch_name;
  std::string_view torch_alias;
};

constexpr std::array<Entry, 15> kEntries = {{
    {DType::kBool, 1, "BOOL", "bool", ""},
    {DType::kU8, 1, "U8", "uint8", ""},
    {DType::kI8, 1, "I8", "int8", ""},
    {DType::kF8E5M2, 1, "F8_E5M2", "float8_e5m2", ""},
    {DType::kF8E4M3, 1, "F8_E4M3", "float8_e4m3fn", ""},
    {DType::kI16, 2, "I16", "int16", "short"},
    {DType::kU16, 2, "U16", "uint16", ""},
    {DType::kF16, 2, "F16", "float16", "half"},
    {DType::kBF16, 2, "BF16", "bfloat16", ""},
    {DType::kI32, 4, "I32", "int32", "int"},
    {DType::kU32, 4, "U32", "uint32", ""},
    {DType::kF32, 4, "F32", "float32", "float"},
    {DType::kF64, 8, "F64", "float64", "double"},
    {DType::kI64, 8, "I64", "int64", "long"},
    {DType::kU64, 8, "U64", "uint64", ""},
}};

constexpr bool in_enum_order() {
  for (std::size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<std::size_t>(kEntries[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_enum_order());

const Entry& entry(DType dtype) {
  return kEntries.at(static_cast<std::size_t>(dtype));
}

}  // namespace

std::size_t dtype_size_bytes(DType dtype) {
  return entry(dtype).size_bytes;
}

std::string_view dtype_name(DType dtype) {
  return entry(dtype).name;
}

std::string_view dtype_torch_name(DType dtype) {
  return entry(dtype).torch_name;
}

std::optional<DType> try_parse_dtype(std::string_view name) {
  for (const Entry& e : kEntries) {
    if (e.name == name) return e.dtype;
  }
  return std::nullopt;
}

std::optional<DType> try_parse_torch_dtype(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const Entry& e : kEntries) {
    if (e.torch_name == name || (!e.torch_alias.empty() && e.torch_alias == name)) return e.dtype;
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

}  // namespace weft
