#include "weft/store/internal/layout.h"

#include <algorithm>
#include <system_error>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/format/json.h"

namespace weft::store {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr std::string_view kFormat = "weft-store-1";
constexpr std::string_view kDigestPrefix = "blake3:";
// A manifest of a million tensors, and the values of 2^23 blocks (64 TiB).
constexpr std::uint64_t kMaxVersionFileBytes = 256ull << 20;

Error corrupt(const fs::path& path, std::string_view what) {
  return {ErrorCode::kCorrupt, fmt::format("{}: {}", path.string(), what)};
}

std::string_view hex_of(std::string_view id) {
  return id.substr(std::min(kDigestPrefix.size(), id.size()));
}

json::object version_object(const CatalogVersion& version) {
  return {{"bytes", version.bytes},     {"created_ms", version.created_ms},
          {"id", version.id},           {"origin", version.origin},
          {"parent", version.parent},   {"pinned", version.pinned},
          {"tensors", version.tensors}, {"sequence", version.sequence}};
}

// Boost.JSON's own accessors throw; these files are read back by the process that wrote them, but
// people edit files.
template <typename T>
Result<T> field(const json::object& object, const char* name) {
  const json::value* const value = object.if_contains(name);
  if (value != nullptr) {
    const auto read = json::try_value_to<T>(*value);
    if (read) return *read;
  }
  return Error(ErrorCode::kCorrupt, fmt::format("catalog: `{}` is missing or no such value", name));
}

Result<CatalogVersion> parse_version(const json::value& value) {
  if (!value.is_object()) return Error(ErrorCode::kCorrupt, "catalog: a version is no object");
  const json::object& object = value.get_object();
  CatalogVersion version;
  WEFT_TRY(version.id, field<std::string>(object, "id"));
  if (!try_parse_digest(version.id)) {
    return Error(ErrorCode::kCorrupt, fmt::format("catalog: `{}` is no id", version.id));
  }
  WEFT_TRY(version.parent, field<std::string>(object, "parent"));
  WEFT_TRY(version.origin, field<std::string>(object, "origin"));
  WEFT_TRY(version.sequence, field<std::uint64_t>(object, "sequence"));
  WEFT_TRY(version.created_ms, field<std::int64_t>(object, "created_ms"));
  WEFT_TRY(version.pinned, field<bool>(object, "pinned"));
  WEFT_TRY(version.tensors, field<std::uint64_t>(object, "tensors"));
  WEFT_TRY(version.bytes, field<std::uint64_t>(object, "bytes"));
  return version;
}

Result<json::array> list(const json::object& root, const char* name) {
  const json::value* const value = root.if_contains(name);
  if (value != nullptr && value->is_array()) return value->get_array();
  return Error(ErrorCode::kCorrupt, fmt::format("catalog: `{}` is no array", name));
}

json::array names_array(const std::map<std::string, std::string>& names) {
  json::array all;
  for (const auto& [name, id] : names) all.push_back(json::object{{"id", id}, {"name", name}});
  return all;
}

// Calls `take(name, id)` for each.
template <typename Take>
Result<void> parse_names(const json::object& root, const char* list_name, Take take) {
  WEFT_TRY(const json::array all, list(root, list_name));
  for (const json::value& value : all) {
    if (!value.is_object()) return Error(ErrorCode::kCorrupt, "catalog: a name is no object");
    WEFT_TRY(const std::string name, field<std::string>(value.get_object(), "name"));
    WEFT_TRY(const std::string id, field<std::string>(value.get_object(), "id"));
    auto taken = take(name, id);
    if (!taken) return Error(ErrorCode::kCorrupt, "catalog: " + taken.error().message());
  }
  return {};
}

// Cuts the list of values into those of each entry and holds them against the manifest.
Result<std::vector<std::vector<Digest>>> split_blocks(const Manifest& manifest,
                                                      std::string_view bytes,
                                                      const fs::path& path) {
  std::vector<Digest> expected;
  for (const auto& tensor : manifest.tensors) expected.push_back(tensor.digest);
  for (const auto& file : manifest.files) expected.push_back(file.digest);
  std::vector<std::vector<Digest>> blocks;
  for (const std::uint64_t size_bytes : entry_sizes(manifest)) {
    const std::uint64_t count = block_count(size_bytes);
    if (bytes.size() / sizeof(Digest) < count) return corrupt(path, "ends early");
    std::vector<Digest>& values = blocks.emplace_back(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(Digest));
    bytes.remove_prefix(values.size() * sizeof(Digest));
    if (merge_block_digests(values) != expected[blocks.size() - 1]) {
      return corrupt(path, fmt::format("the values of entry {} are not those of the manifest",
                                       blocks.size() - 1));
    }
  }
  if (!bytes.empty()) return corrupt(path, "goes on after the last block");
  return blocks;
}

}  // namespace

std::string digest_hex(const Digest& digest) {
  return digest_text(digest).substr(kDigestPrefix.size());
}

std::optional<Digest> try_parse_digest_hex(std::string_view hex) {
  return try_parse_digest(std::string(kDigestPrefix) + std::string(hex));
}

fs::path Layout::manifest(std::string_view id) const {
  return versions() / (std::string(hex_of(id)) + ".json");
}

fs::path Layout::blocks(std::string_view id) const {
  return versions() / (std::string(hex_of(id)) + ".blocks");
}

fs::path Layout::object(const Digest& digest) const {
  const std::string hex = digest_hex(digest);
  return objects() / hex.substr(0, 2) / hex;
}

fs::path Layout::delta_index(std::string_view id, std::string_view base) const {
  return deltas() / fmt::format("{}-{}.index", hex_of(id), hex_of(base));
}

fs::path Layout::delta_pack(std::string_view id, std::string_view base, std::size_t pack) const {
  return deltas() / fmt::format("{}-{}.{}.pack", hex_of(id), hex_of(base), pack);
}

std::optional<std::pair<std::string, std::string>> try_parse_delta_name(const fs::path& path) {
  if (path.extension() != ".index") return std::nullopt;
  const std::string name = path.stem().string();
  const std::size_t middle = name.find('-');
  if (middle == std::string::npos) return std::nullopt;
  const auto id = try_parse_digest_hex(std::string_view(name).substr(0, middle));
  const auto base = try_parse_digest_hex(std::string_view(name).substr(middle + 1));
  if (!id || !base) return std::nullopt;
  return std::pair(digest_text(*id), digest_text(*base));
}

Result<FolderLock> blocking_lock(const Layout& layout) {
  return FolderLock::blocking_take(layout.root, "store", layout.catalog().filename().string());
}

std::vector<fs::path> names_in(const fs::path& folder) {
  std::vector<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    names.push_back(each->path());
  }
  std::ranges::sort(names);
  return names;
}

std::string catalog_json(const Catalog& catalog) {
  json::array versions;
  for (const auto& [id, version] : catalog.versions()) versions.push_back(version_object(version));
  return canonical_json(json::object{{"format", kFormat},
                                     {"heads", names_array(catalog.heads())},
                                     {"labels", names_array(catalog.labels())},
                                     {"versions", std::move(versions)}});
}

Result<Catalog> parse_catalog(std::string_view text) {
  auto root = parse_json(text);
  if (!root) return Error(ErrorCode::kCorrupt, "catalog: " + root.error().message());
  if (!root->is_object()) return Error(ErrorCode::kCorrupt, "catalog: no object");
  const json::object& object = root->get_object();
  WEFT_TRY(const std::string format, field<std::string>(object, "format"));
  if (format != kFormat) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("the format is `{}`, this program reads `{}`", format, kFormat));
  }
  Catalog catalog;
  WEFT_TRY(const json::array versions, list(object, "versions"));
  for (const json::value& value : versions) {
    WEFT_TRY(CatalogVersion version, parse_version(value));
    catalog.restore(std::move(version));
  }
  WEFT_TRY_VOID(parse_names(object, "labels", [&](const auto& name, const auto& id) {
    return catalog.set_label(name, id);
  }));
  WEFT_TRY_VOID(parse_names(object, "heads", [&](const auto& name, const auto& id) {
    return catalog.move_head(name, id, std::nullopt);
  }));
  return catalog;
}

std::string blocks_bytes(const std::vector<std::vector<Digest>>& blocks) {
  std::string bytes;
  for (const auto& entry : blocks) {
    bytes.append(reinterpret_cast<const char*>(entry.data()), entry.size() * sizeof(Digest));
  }
  return bytes;
}

std::vector<std::uint64_t> entry_sizes(const Manifest& manifest) {
  std::vector<std::uint64_t> sizes;
  // parse_manifest() has refused what overflows.
  for (const auto& tensor : manifest.tensors) {
    sizes.push_back(tensor_size_bytes(tensor.spec).value());
  }
  for (const auto& file : manifest.files) sizes.push_back(file.size_bytes);
  return sizes;
}

Result<std::shared_ptr<const VersionContent>> blocking_read_version(const Layout& layout,
                                                                    const std::string& id) {
  const fs::path path = layout.manifest(id);
  VersionContent content;
  content.id = id;
  WEFT_TRY(content.manifest_json, blocking_read_file(path, kMaxVersionFileBytes));
  if (digest_text(digest_of(std::as_bytes(std::span(content.manifest_json)))) != id) {
    return corrupt(path, "its bytes do not have the digest that its name says");
  }
  auto manifest = parse_manifest(content.manifest_json);
  if (!manifest) return std::move(manifest).error().with_context(path.string());
  content.manifest = *std::move(manifest);
  WEFT_TRY(const std::string bytes, blocking_read_file(layout.blocks(id), kMaxVersionFileBytes));
  WEFT_TRY(content.blocks, split_blocks(content.manifest, bytes, layout.blocks(id)));
  return std::make_shared<const VersionContent>(std::move(content));
}

}  // namespace weft::store
