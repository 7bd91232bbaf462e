#include "weft/format/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <fmt/core.h>

namespace weft {
namespace {

namespace json = boost::json;

constexpr std::string_view kMetadata = "__metadata__";
// More than any real tensor has; bounds what a header of nothing but a shape costs.
constexpr std::size_t kMaxDims = 64;

Error corrupt(std::string message) {
  return {ErrorCode::kCorrupt, std::move(message)};
}
Error corrupt(std::string_view tensor, std::string_view reason) {
  return corrupt(fmt::format("tensor `{}`: {}", tensor, reason));
}

// Takes the header as it is read, without a tree of values: memory stays in proportion to what is
// kept, and what does not belong is refused where it stands.
class HeaderReader {
 public:
  // NOLINTBEGIN(readability-identifier-naming): Boost's names
  static constexpr std::size_t max_object_size = SIZE_MAX;
  static constexpr std::size_t max_array_size = SIZE_MAX;
  static constexpr std::size_t max_key_size = SIZE_MAX;
  static constexpr std::size_t max_string_size = SIZE_MAX;
  // NOLINTEND(readability-identifier-naming)

  SafetensorsHeader header;
  std::string reason;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code& error) {
    if (place_ == Place::kOutside) return go(Place::kTop);
    if (place_ != Place::kTop) return refuse(error, "an object where none belongs");
    if (name_ == kMetadata) return has_metadata_ ? twice(error) : go(Place::kTexts);
    header.tensors.push_back({{name_, {}, {}}, 0, 0});
    fields_ = {};
    return go(Place::kTensor);
  }
  bool on_object_end(std::size_t, json::error_code& error) {
    if (place_ == Place::kTop) return go(Place::kOutside);
    if (place_ == Place::kTexts) has_metadata_ = true;
    if (place_ == Place::kTensor && !(fields_.dtype && fields_.shape && fields_.offsets)) {
      return refuse(error, "needs `dtype`, `shape` and `data_offsets`");
    }
    return go(Place::kTop);
  }
  bool on_array_begin(json::error_code& error) {
    if (place_ == Place::kTensor && key_ == "shape") {
      return fields_.shape ? twice(error) : go(Place::kShape);
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      return fields_.offsets ? twice(error) : go(Place::kOffsets);
    }
    return refuse(error, "an array where none belongs");
  }
  bool on_array_end(std::size_t count, json::error_code& error) {
    if (place_ == Place::kOffsets && count != 2) return refuse(error, "`data_offsets` is not two");
    (place_ == Place::kShape ? fields_.shape : fields_.offsets) = true;
    return go(Place::kTensor);
  }

  bool on_key_part(json::string_view part, std::size_t, json::error_code&) {
    return text_.append(part), true;
  }
  bool on_key(json::string_view part, std::size_t, json::error_code&) {
    text_.append(part);
    std::swap(place_ == Place::kTop ? name_ : key_, text_);
    text_.clear();
    return true;
  }
  bool on_string_part(json::string_view part, std::size_t, json::error_code&) {
    return text_.append(part), true;
  }
  bool on_string(json::string_view part, std::size_t, json::error_code& error) {
    text_.append(part);
    const std::string text = std::exchange(text_, {});
    if (place_ == Place::kTexts) {
      return header.metadata.emplace(key_, text).second ? true : twice(error);
    }
    if (place_ != Place::kTensor || key_ != "dtype")
      return refuse(error, "a text where none belongs");
    if (fields_.dtype) return twice(error);
    const auto dtype = try_parse_dtype(text);
    if (!dtype) return refuse(error, fmt::format("`dtype` is `{}`, which is not known", text));
    header.tensors.back().spec.dtype = *dtype;
    return fields_.dtype = true;
  }

  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(std::int64_t number, json::string_view text, json::error_code& error) {
    if (number < 0 || text.starts_with('-')) return refuse(error, "a negative number");
    return on_uint64(static_cast<std::uint64_t>(number), text, error);
  }
  bool on_uint64(std::uint64_t number, json::string_view, json::error_code& error) {
    if (place_ == Place::kOffsets) {
      SafetensorsEntry& entry = header.tensors.back();
      entry.begin_bytes = std::exchange(entry.end_bytes, number);
      return true;
    }
    if (place_ != Place::kShape) return refuse(error, "a number where none belongs");
    Shape& shape = header.tensors.back().spec.shape;
    if (shape.size() == kMaxDims) return refuse(error, fmt::format("over {} dimensions", kMaxDims));
    shape.push_back(number);
    return true;
  }
  bool on_double(double, json::string_view, json::error_code& error) {
    return refuse(error, "a number that is no integer of 64 bits");
  }
  bool on_bool(bool, json::error_code& error) { return refuse(error, "a truth value"); }
  bool on_null(json::error_code& error) { return refuse(error, "null"); }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  enum class Place { kOutside, kTop, kTexts, kTensor, kShape, kOffsets };
  struct Fields {
    bool dtype = false, shape = false, offsets = false;
  };

  bool go(Place place) { return place_ = place, true; }
  bool twice(json::error_code& error) {
    return refuse(error, fmt::format("`{}` is given twice", place_ == Place::kTop ? name_ : key_));
  }
  bool refuse(json::error_code& error, std::string_view why) {
    const char* what = name_ == kMetadata ? "metadata" : "tensor";
    reason = place_ == Place::kOutside ? "it is not a JSON object"
                                       : fmt::format("{} `{}`: {}", what, name_, why);
    error = json::error::extra_data;
    return false;
  }

  Place place_ = Place::kOutside;
  Fields fields_;  // of the current tensor, seen so far
  bool has_metadata_ = false;
  std::string name_;  // of the current tensor, or "__metadata__"
  std::string key_;   // inside of it
  std::string text_;  // the string that is being read
};

std::optional<std::string> try_find_twice(const std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsEntry& tensor : tensors) names.push_back(tensor.spec.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return std::nullopt;
  return std::string(*twice);
}

Result<void> check_size(const SafetensorsEntry& tensor) {
  const std::string& name = tensor.spec.name;
  if (tensor.end_bytes < tensor.begin_bytes) return corrupt(name, "ends before it begins");
  const auto size_bytes = tensor_size_bytes(tensor.spec);
  if (!size_bytes) return corrupt(size_bytes.error().message());
  if (*size_bytes != tensor.end_bytes - tensor.begin_bytes) {
    return corrupt(name, fmt::format("{} of {} are {} bytes, its offsets hold {}",
                                     shape_text(tensor.spec.shape), dtype_name(tensor.spec.dtype),
                                     *size_bytes, tensor.end_bytes - tensor.begin_bytes));
  }
  return {};
}

// Sorts the tensors by their place and checks that they fill the data without a gap.
Result<void> lay_out(SafetensorsHeader& header) {
  std::ranges::sort(header.tensors, {}, [](const SafetensorsEntry& tensor) {
    return std::tie(tensor.begin_bytes, tensor.end_bytes, tensor.spec.name);
  });
  for (const SafetensorsEntry& tensor : header.tensors) {
    WEFT_TRY_VOID(check_size(tensor));
    if (tensor.begin_bytes != header.data_bytes) {
      return corrupt(
          tensor.spec.name,
          fmt::format("begins at byte {} of the data, {} byte {}", tensor.begin_bytes,
                      tensor.begin_bytes > header.data_bytes ? "after a hole from"
                                                             : "inside another tensor that ends at",
                      header.data_bytes));
    }
    header.data_bytes = tensor.end_bytes;
  }
  return {};
}

}  // namespace

Result<std::uint64_t> parse_safetensors_prefix(std::span<const std::byte, 8> prefix) {
  std::uint64_t size_bytes = 0;
  for (std::size_t i = 8; i-- > 0;)
    size_bytes = size_bytes << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  if (size_bytes < 2 || size_bytes > kMaxSafetensorsHeaderBytes) {
    return corrupt(
        fmt::format("not a safetensors file: its header would have {} bytes, not 2 to {}",
                    size_bytes, kMaxSafetensorsHeaderBytes));
  }
  return size_bytes;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view header_json) {
  if (!header_json.starts_with('{')) return corrupt("the header does not begin with `{`");
  json::basic_parser<HeaderReader> parser{json::parse_options{}};
  json::error_code error;
  const std::size_t end = parser.write_some(false, header_json.data(), header_json.size(), error);
  HeaderReader& reader = parser.handler();
  if (!reader.reason.empty()) return corrupt("header: " + reader.reason);
  if (!error && end != header_json.size()) error = json::error::extra_data;
  if (error) return corrupt(fmt::format("header: not JSON at byte {}: {}", end, error.message()));

  SafetensorsHeader header = std::move(reader.header);
  if (const auto twice = try_find_twice(header.tensors)) return corrupt(*twice, "is named twice");
  WEFT_TRY_VOID(lay_out(header));
  return header;
}

Result<void> check_safetensors_tensor(const TensorSpec& spec) {
  const auto bad = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("tensor `{}`: {}", spec.name, why));
  };
  if (spec.name == kMetadata) return bad("a name that safetensors has taken");
  if (spec.shape.size() > kMaxDims) return bad(fmt::format("over {} dimensions", kMaxDims));
  return {};
}

Result<std::string> make_safetensors_header(std::span<const TensorSpec> tensors,
                                            const std::map<std::string, std::string>& metadata) {
  json::object header;
  if (!metadata.empty()) {
    json::object& texts = header[kMetadata].emplace_object();
    for (const auto& [key, text] : metadata) texts[key] = text;
  }
  std::uint64_t at = 0;
  for (const TensorSpec& spec : tensors) {
    WEFT_TRY_VOID(check_safetensors_tensor(spec));
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(spec));
    json::object entry{{"dtype", dtype_name(spec.dtype)},
                       {"shape", json::array(spec.shape.begin(), spec.shape.end())},
                       {"data_offsets", {at, at + size_bytes}}};
    if (!header.emplace(spec.name, std::move(entry)).second) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("tensor `{}`: the name is given twice", spec.name));
    }
    at += size_bytes;
  }
  std::string text = json::serialize(header);
  text.append(-text.size() % kSafetensorsPrefixBytes, ' ');
  std::string prefix;
  for (std::size_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    prefix += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return prefix + text;
}

}  // namespace weft
