#include "weft/app/inspect.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/base/wording.h"
#include "weft/digest/digest.h"
#include "weft/format/manifest.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/tensor_source.h"
#include "weft/transfer/version_blocks.h"

namespace weft {
namespace {

namespace json = boost::json;

// What is known of a version.
struct Inspected {
  Manifest manifest;
  VersionDigests blocks;  // [entries][blocks]; empty where they are not known
};

// One line of what is printed.
struct Entry {
  std::string name, dtype, shape;
  std::uint64_t size_bytes = 0;
  Digest digest;
};

Result<std::vector<Entry>> entries_of(const Manifest& manifest) {
  std::vector<Entry> entries;
  for (const ManifestTensor& tensor : manifest.tensors) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(tensor.spec));
    entries.push_back({tensor.spec.name, std::string(dtype_name(tensor.spec.dtype)),
                       shape_text(tensor.spec.shape), size_bytes, tensor.digest});
  }
  for (const ManifestFile& file : manifest.files) {
    entries.push_back({file.name, "file", "", file.size_bytes, file.digest});
  }
  return entries;
}

Result<Inspected> blocking_hash(const std::string& path) {
  WEFT_TRY(const auto source, blocking_open_source(path));
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  WEFT_TRY(const SourceVersion version, SourceVersion::blocking_make(*source, threads));
  return Inspected{version.content().manifest, version.content().blocks};
}

Result<Inspected> blocking_read_manifest(const std::string& path) {
  WEFT_TRY(const std::string text, blocking_read_file(path));
  WEFT_TRY(Manifest manifest, parse_manifest(text));
  return Inspected{std::move(manifest), {}};
}

// The values of all blocks, one after the other, as a server has them.
Result<VersionDigests> split_blocks(std::string_view body, const std::vector<Entry>& entries) {
  const auto bytes = std::as_bytes(std::span(body));
  VersionDigests blocks;
  std::size_t used = 0;
  for (const Entry& entry : entries) {
    auto& values = blocks.emplace_back(block_count(entry.size_bytes));
    for (Digest& value : values) {
      if (bytes.size() - used < sizeof(value.bytes)) break;
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(used), sizeof(value.bytes),
                  value.bytes.begin());
      used += sizeof(value.bytes);
    }
    if (merge_block_digests(values) != entry.digest) {
      return Error(ErrorCode::kCorrupt,
                   "the list of blocks does not merge into the digest of " + entry.name);
    }
  }
  return blocks;
}

Result<Inspected> blocking_fetch(const InspectConfig& config) {
  WEFT_TRY(const auto server, make_client(config.what, config.client));
  WEFT_TRY(const std::string id, blocking_resolve_version(*server, config.version));
  const std::string path = "/weft/v1/versions/" + id;
  WEFT_TRY(const auto text, blocking_call(*server, "GET", path + "/manifest"));
  WEFT_TRY(Manifest manifest, parse_manifest(text.body));
  if (manifest_id(manifest) != id) {
    return Error(ErrorCode::kCorrupt, "the manifest that came is not that of " + id);
  }
  Inspected inspected{std::move(manifest), {}};
  if (config.blocks) {
    WEFT_TRY(const auto values, blocking_call(*server, "GET", path + "/blocks"));
    WEFT_TRY(const auto entries, entries_of(inspected.manifest));
    WEFT_TRY(inspected.blocks, split_blocks(values.body, entries));
  }
  return inspected;
}

Result<Inspected> blocking_inspect(const InspectConfig& config) {
  if (config.what.find("://") != std::string::npos) return blocking_fetch(config);
  if (std::filesystem::path(config.what).extension() == ".json") {
    return blocking_read_manifest(config.what);
  }
  return blocking_hash(config.what);
}

void print_lines(const Inspected& inspected, const std::vector<Entry>& entries, bool with_blocks) {
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    total_bytes += entry.size_bytes;
    fmt::print("{}  {:>12}  {:4}  {:16}  {}\n", digest_text(entry.digest), entry.size_bytes,
               entry.dtype, entry.shape, printable(entry.name));
    if (!with_blocks || i >= inspected.blocks.size()) continue;
    for (const Digest& value : inspected.blocks[i]) fmt::print("  {}\n", digest_text(value));
  }
  fmt::print("{}  {}, {}, {}\n", manifest_id(inspected.manifest),
             counted(inspected.manifest.tensors.size(), "tensor"),
             counted(inspected.manifest.files.size(), "file"), bytes_text(total_bytes));
}

json::object json_of(const Inspected& inspected, const std::vector<Entry>& entries,
                     bool with_blocks) {
  json::array tensors, files;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    json::object line{
        {"name", entry.name}, {"bytes", entry.size_bytes}, {"digest", digest_text(entry.digest)}};
    if (with_blocks && i < inspected.blocks.size()) {
      json::array& values = line["blocks"].emplace_array();
      for (const Digest& value : inspected.blocks[i]) values.emplace_back(digest_text(value));
    }
    if (i < inspected.manifest.tensors.size()) {
      const Shape& shape = inspected.manifest.tensors[i].spec.shape;
      line["dtype"] = entry.dtype;
      line["shape"] = json::array(shape.begin(), shape.end());
      tensors.push_back(std::move(line));
    } else {
      files.push_back(std::move(line));
    }
  }
  return {{"id", manifest_id(inspected.manifest)},
          {"tensors", std::move(tensors)},
          {"files", std::move(files)}};
}

}  // namespace

int blocking_run_inspect(const InspectConfig& config) {
  const auto inspected = blocking_inspect(config);
  if (!inspected) return report_error("inspect", inspected.error(), config.client);
  const auto entries = entries_of(inspected->manifest);
  if (!entries) return report_error("inspect", entries.error(), config.client);
  if (config.client.json) {
    fmt::print("{}\n", json::serialize(json_of(*inspected, *entries, config.blocks)));
  } else {
    print_lines(*inspected, *entries, config.blocks);
  }
  return 0;
}

}  // namespace weft
