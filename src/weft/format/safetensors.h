#pragma once
// The safetensors format: 8 bytes of little-endian header length, a JSON header, then the tensors'
// bytes. Strict: what the format's own parser refuses is refused, and so are holes, overlaps,
// aliases, duplicate names and trailing bytes. Pure functions; no file, no socket. Source: the
// format section of the safetensors README.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/tensor.h"

namespace weft {

struct SafetensorsEntry {
  TensorSpec spec;
  std::uint64_t begin_bytes;  // from the end of the header
  std::uint64_t end_bytes;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry>
      tensors;  // in the order of their bytes; empty ones by name among equals
  std::map<std::string, std::string> metadata;
  std::uint64_t data_bytes = 0;  // of all tensors; the file is 8 + header + this
};

// The prefix that says how long the header is.
inline constexpr std::size_t kSafetensorsPrefixBytes = 8;
// The largest header that is read. Source: MAX_HEADER_SIZE of the safetensors crate.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// The header's length from the first 8 bytes. Errors: kCorrupt over the cap or under 2.
Result<std::uint64_t> parse_safetensors_prefix(std::span<const std::byte, 8> prefix);
// Errors: kCorrupt with the tensor's name and what is wrong.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view header_json);

// May a file have this tensor? Errors: kInvalidArgument for the name "__metadata__" and for more
// dimensions than are read.
Result<void> check_safetensors_tensor(const TensorSpec& spec);
// The prefix and header of a file with these tensors in this order, padded so that the data starts
// at a multiple of 8. Errors: check_safetensors_tensor(); kInvalidArgument for a name given
// twice.
Result<std::string> make_safetensors_header(std::span<const TensorSpec> tensors,
                                            const std::map<std::string, std::string>& metadata);

}  // namespace weft
