#include "weft/checkpoint/checkpoint_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/format/json.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
// Of transformers, for the weights that only unpickling reads.
constexpr std::array<std::string_view, 5> kPickleExtensions = {".bin", ".pt", ".pth", ".ckpt",
                                                               ".pkl"};

struct OpenFile {
  File file;
  SafetensorsHeader header;
  std::uint64_t data_offset_bytes;  // in the file
};

Result<OpenFile> blocking_read_header(File file) {
  std::array<std::byte, kSafetensorsPrefixBytes> prefix;
  if (file.size_bytes() < prefix.size()) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("not a safetensors file: it has {} bytes", file.size_bytes()));
  }
  WEFT_TRY_VOID(file.blocking_read_at(0, prefix));
  WEFT_TRY(const std::uint64_t header_bytes, parse_safetensors_prefix(prefix));
  if (header_bytes > file.size_bytes() - prefix.size()) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("its header has {} bytes, the file {}; it may be cut short",
                             header_bytes, file.size_bytes()));
  }
  std::string text(header_bytes, '\0');
  WEFT_TRY_VOID(file.blocking_read_at(prefix.size(), std::as_writable_bytes(std::span(text))));
  WEFT_TRY(SafetensorsHeader header, parse_safetensors_header(text));
  const std::uint64_t data_offset_bytes = prefix.size() + header_bytes;
  const std::uint64_t data_bytes = file.size_bytes() - data_offset_bytes;
  if (data_bytes != header.data_bytes) {
    return Error(ErrorCode::kCorrupt, fmt::format("its tensors have {} bytes, the file holds {}",
                                                  header.data_bytes, data_bytes));
  }
  return OpenFile{std::move(file), std::move(header), data_offset_bytes};
}

Result<OpenFile> blocking_open_file(const fs::path& path) {
  WEFT_TRY(File file, File::open(path));
  auto opened = blocking_read_header(std::move(file));
  if (!opened) return std::move(opened).error().with_context(path.string());
  return opened;
}

// The one file of a folder without an index. Errors name what was found instead.
Result<fs::path> blocking_find_single(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kSingleName, error)) return folder / kSingleName;
  std::vector<fs::path> found;
  fs::path pickle;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::path& path = at->path();
    if (path.extension() == ".safetensors") found.push_back(path);
    if (std::ranges::count(kPickleExtensions, path.extension().string()) != 0) pickle = path;
  }
  if (error) {
    return Error(ErrorCode::kForbidden,
                 fmt::format("{}: cannot list it: {}", folder.string(), error.message()));
  }
  if (found.size() == 1) return found.front();
  if (found.size() > 1) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: has {} .safetensors files and no {} that says which tensor is where",
                    folder.string(), found.size(), kIndexName));
  }
  if (!pickle.empty()) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("{}: pickled weights are not read, they can run code; save the model "
                             "as safetensors",
                             pickle.string()));
  }
  return Error(ErrorCode::kNotFound, fmt::format("{}: has neither {} nor a .safetensors file",
                                                 folder.string(), kIndexName));
}

bool is_inside(const fs::path& name) {
  return name.has_filename() && name.is_relative() && std::ranges::count(name, fs::path("..")) == 0;
}

// The index's file names with the tensors that each is asked for.
using TensorsByFile = std::map<std::string, std::set<std::string>>;

Result<TensorsByFile> parse_index(std::string_view text) {
  WEFT_TRY(const boost::json::value root, parse_json(text));
  const auto* map = root.is_object() ? root.get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    return Error(ErrorCode::kInvalidArgument, "has no object `weight_map`");
  }
  TensorsByFile files;
  for (const auto& [tensor, file] : map->get_object()) {
    if (!file.is_string() || !is_inside(std::string(file.get_string()))) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("tensor `{}`: its file is {}, which is not in the folder",
                               std::string_view(tensor), boost::json::serialize(file)));
    }
    files[std::string(file.get_string())].emplace(tensor);
  }
  return files;
}

Error lacking(const fs::path& path, std::set<std::string> wanted,
              std::span<const CheckpointFiles::Entry> found) {
  for (const CheckpointFiles::Entry& entry : found) wanted.erase(entry.spec.name);
  return {ErrorCode::kInvalidArgument,
          fmt::format("tensor `{}` is not in {}", *wanted.begin(), path.string())};
}

}  // namespace

Result<CheckpointFiles> CheckpointFiles::blocking_open(const fs::path& path) {
  std::error_code error;
  CheckpointFiles checkpoint;
  if (fs::exists(path / kIndexName, error)) {
    WEFT_TRY_VOID(checkpoint.blocking_add_indexed(path));
  } else if (fs::is_directory(path, error)) {
    WEFT_TRY(const fs::path single, blocking_find_single(path));
    WEFT_TRY_VOID(checkpoint.blocking_add(single, nullptr));
  } else {
    WEFT_TRY_VOID(checkpoint.blocking_add(path, nullptr));
  }
  std::ranges::sort(checkpoint.tensors_, {},
                    [](const Entry& entry) -> const std::string& { return entry.spec.name; });
  return checkpoint;
}

Result<void> CheckpointFiles::blocking_add_indexed(const fs::path& folder) {
  const fs::path index_path = folder / kIndexName;
  WEFT_TRY(const std::string text, blocking_read_file(index_path));
  auto index = parse_index(text);
  if (!index) return std::move(index).error().with_context(index_path.string());
  for (const auto& [name, tensors] : *index) {
    auto added = blocking_add(folder / name, &tensors);
    if (!added) return std::move(added).error().with_context(index_path.string());
  }
  return {};
}

Result<void> CheckpointFiles::blocking_add(const fs::path& path,
                                           const std::set<std::string>* wanted) {
  WEFT_TRY(OpenFile opened, blocking_open_file(path));
  std::size_t found = 0;
  for (SafetensorsEntry& tensor : opened.header.tensors) {
    if (wanted != nullptr && !wanted->contains(tensor.spec.name)) continue;
    ++found;
    tensors_.push_back(
        {std::move(tensor.spec), files_.size(), opened.data_offset_bytes + tensor.begin_bytes});
  }
  if (wanted != nullptr && found != wanted->size()) return lacking(path, *wanted, tensors_);
  files_.push_back(std::move(opened.file));
  return {};
}

Result<void> CheckpointFiles::blocking_read(const Entry& tensor, std::span<std::byte> out) const {
  WEFT_DCHECK(out.size() == tensor_size_bytes(tensor.spec).value());
  return blocking_read_at(tensor, 0, out);
}

Result<void> CheckpointFiles::blocking_read_at(const Entry& tensor, std::uint64_t offset_bytes,
                                               std::span<std::byte> out) const {
  auto read = files_.at(tensor.file).blocking_read_at(tensor.offset_bytes + offset_bytes, out);
  if (!read) return std::move(read).error().with_context(tensor.spec.name);
  return {};
}

const fs::path& CheckpointFiles::path_of(const Entry& tensor) const {
  return files_.at(tensor.file).path();
}

}  // namespace weft
