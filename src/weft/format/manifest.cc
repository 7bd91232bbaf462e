#include "weft/format/manifest.h"

#include <algorithm>
#include <functional>
#include <span>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/format/json.h"
#include "weft/format/safetensors.h"

namespace weft {
namespace {

namespace json = boost::json;

constexpr std::string_view kFormat = "weft-manifest-1";
// The largest integer that every reader of JSON has. Source: RFC 7493, section 2.2.
constexpr std::uint64_t kMaxInteger = (1ull << 53) - 1;

Error corrupt(std::string_view where, std::string_view reason) {
  return {ErrorCode::kCorrupt, fmt::format("manifest: {}: {}", where, reason)};
}

Result<const json::value*> member(const json::value& parent, const char* name) {
  const json::value* found = parent.is_object() ? parent.get_object().if_contains(name) : nullptr;
  if (found == nullptr) return corrupt(name, "is missing");
  return found;
}

Result<std::string> text_of(const json::value& parent, const char* name) {
  WEFT_TRY(const json::value* found, member(parent, name));
  if (!found->is_string()) return corrupt(name, "is no text");
  return std::string(found->get_string());
}

Result<const json::array*> array_of(const json::value& parent, const char* name) {
  WEFT_TRY(const json::value* found, member(parent, name));
  if (!found->is_array()) return corrupt(name, "is no array");
  return &found->get_array();
}

Result<std::uint64_t> integer_of(const json::value& value, const char* name) {
  const std::int64_t* number = value.if_int64();
  if (number == nullptr || *number < 0 || static_cast<std::uint64_t>(*number) > kMaxInteger) {
    return corrupt(name, "is no integer from 0 to 2^53 - 1");
  }
  return static_cast<std::uint64_t>(*number);
}

Result<Digest> digest_in(const json::value& parent, const std::string& name) {
  WEFT_TRY(const std::string text, text_of(parent, "digest"));
  const auto digest = try_parse_digest(text);
  if (!digest) return corrupt(name, fmt::format("`{}` is no digest", text));
  return *digest;
}

Result<ManifestTensor> parse_tensor(const json::value& value) {
  WEFT_TRY(std::string name, text_of(value, "name"));
  WEFT_TRY(const Digest digest, digest_in(value, name));
  WEFT_TRY(const std::string dtype_text, text_of(value, "dtype"));
  const auto dtype = try_parse_dtype(dtype_text);
  if (!dtype) return corrupt(name, fmt::format("dtype `{}` is not known", dtype_text));
  WEFT_TRY(const json::array* dims, array_of(value, "shape"));
  Shape shape;
  for (const json::value& dim : *dims) {
    WEFT_TRY(const std::uint64_t checked, integer_of(dim, "shape"));
    shape.push_back(checked);
  }
  ManifestTensor tensor{{std::move(name), *dtype, std::move(shape)}, digest};
  const auto fits = check_safetensors_tensor(tensor.spec);
  if (!fits) return corrupt("tensors", fits.error().message());
  const auto size_bytes = tensor_size_bytes(tensor.spec);
  if (!size_bytes) return corrupt("tensors", size_bytes.error().message());
  return tensor;
}

Result<ManifestFile> parse_file(const json::value& value) {
  WEFT_TRY(std::string name, text_of(value, "name"));
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
    return corrupt("files", fmt::format("`{}` is no plain file name", name));
  }
  WEFT_TRY(const Digest digest, digest_in(value, name));
  WEFT_TRY(const json::value* size, member(value, "size"));
  WEFT_TRY(const std::uint64_t size_bytes, integer_of(*size, "size"));
  return ManifestFile{std::move(name), size_bytes, digest};
}

const std::string& name_of(const ManifestTensor& tensor) {
  return tensor.spec.name;
}
const std::string& name_of(const ManifestFile& file) {
  return file.name;
}

// Sorted by name, and none twice.
template <typename T>
bool is_in_order(const std::vector<T>& items) {
  return std::ranges::adjacent_find(items, std::greater_equal<>(),
                                    [](const T& item) { return name_of(item); }) == items.end();
}

template <typename T>
Result<std::vector<T>> parse_list(const json::value& root, const char* name,
                                  Result<T> (*parse)(const json::value&)) {
  WEFT_TRY(const json::array* values, array_of(root, name));
  std::vector<T> items;
  for (const json::value& value : *values) {
    WEFT_TRY(T item, parse(value));
    items.push_back(std::move(item));
  }
  if (!is_in_order(items)) return corrupt(name, "is not in the order of the names, each once");
  return items;
}

}  // namespace

std::size_t entry_count(const Manifest& manifest) {
  return manifest.tensors.size() + manifest.files.size();
}

const std::string& entry_name(const Manifest& manifest, std::size_t entry) {
  const std::size_t tensors = manifest.tensors.size();
  return entry < tensors ? manifest.tensors[entry].spec.name : manifest.files[entry - tensors].name;
}

const Digest& entry_digest(const Manifest& manifest, std::size_t entry) {
  const std::size_t tensors = manifest.tensors.size();
  return entry < tensors ? manifest.tensors[entry].digest : manifest.files[entry - tensors].digest;
}

std::uint64_t entry_size_bytes(const Manifest& manifest, std::size_t entry) {
  const std::size_t tensors = manifest.tensors.size();
  return entry < tensors ? tensor_size_bytes(manifest.tensors[entry].spec).value()
                         : manifest.files[entry - tensors].size_bytes;
}

std::string manifest_json(const Manifest& manifest) {
  WEFT_CHECK(is_in_order(manifest.tensors) && is_in_order(manifest.files));
  json::array tensors;
  for (const auto& [spec, digest] : manifest.tensors) {
    tensors.push_back(json::object{{"digest", digest_text(digest)},
                                   {"dtype", dtype_name(spec.dtype)},
                                   {"name", spec.name},
                                   {"shape", json::array(spec.shape.begin(), spec.shape.end())}});
  }
  json::array files;
  for (const ManifestFile& file : manifest.files) {
    files.push_back(json::object{
        {"digest", digest_text(file.digest)}, {"name", file.name}, {"size", file.size_bytes}});
  }
  return canonical_json(json::object{
      {"files", std::move(files)}, {"format", kFormat}, {"tensors", std::move(tensors)}});
}

std::string manifest_id(const Manifest& manifest) {
  const std::string text = manifest_json(manifest);
  return digest_text(digest_of(std::as_bytes(std::span(text))));
}

Result<Manifest> parse_manifest(std::string_view text) {
  const auto root = parse_json(text);
  if (!root) return corrupt("not JSON", root.error().message());
  WEFT_TRY(const std::string format, text_of(*root, "format"));
  if (format != kFormat)
    return corrupt("format", fmt::format("is `{}`, not `{}`", format, kFormat));
  Manifest manifest;
  WEFT_TRY(manifest.tensors, parse_list(*root, "tensors", parse_tensor));
  WEFT_TRY(manifest.files, parse_list(*root, "files", parse_file));
  const std::string canonical = manifest_json(manifest);
  if (text != canonical) {
    const auto at = std::ranges::mismatch(text, canonical).in1 - text.begin();
    return corrupt("not canonical", fmt::format("differs from RFC 8785 at byte {}", at));
  }
  return manifest;
}

}  // namespace weft
