// A header that parses tiles its data, and one written from what it says reads back the same. The
// input is the header alone.

#include <cstdint>
#include <vector>

#include "weft/base/check.h"
#include "weft/format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = weft::parse_safetensors_header({reinterpret_cast<const char*>(data), size});
  if (!header) return 0;
  std::uint64_t at = 0;
  std::vector<weft::TensorSpec> specs;
  for (const weft::SafetensorsEntry& tensor : header->tensors) {
    WEFT_CHECK(tensor.begin_bytes == at);
    WEFT_CHECK(tensor.end_bytes - at == weft::tensor_size_bytes(tensor.spec).value());
    at = tensor.end_bytes;
    specs.push_back(tensor.spec);
  }
  WEFT_CHECK(at == header->data_bytes);

  const auto written = weft::make_safetensors_header(specs, header->metadata);
  WEFT_CHECK(written.has_value());
  const auto again = weft::parse_safetensors_header(written->substr(weft::kSafetensorsPrefixBytes));
  WEFT_CHECK(again.has_value());
  WEFT_CHECK(again->data_bytes == header->data_bytes && again->metadata == header->metadata);
  return 0;
}
