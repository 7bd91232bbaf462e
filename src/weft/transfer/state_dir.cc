#include "weft/transfer/state_dir.h"

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "weft/base/file.h"
#include "weft/format/json.h"
#include "weft/format/safetensors.h"

namespace weft {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr const char* kCurrent = "current";
constexpr const char* kRecord = "weft-version.json";
constexpr const char* kWeights = "model.safetensors";

Error failed(const fs::path& path, const std::error_code& code) {
  return Error(code == std::errc::no_space_on_device ? ErrorCode::kNoSpace : ErrorCode::kInternal,
               fmt::format("{}: {}", path.string(), code.message()));
}

// Makes what was written and renamed in a folder survive a power cut.
Result<void> blocking_sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const std::error_code code(errno, std::generic_category());
  if (fd >= 0) ::close(fd);
  if (!synced) return failed(folder, code);
  return {};
}

// The hex digits of the id.
std::string folder_name(const std::string& id) {
  return id.substr(id.find(':') + 1);
}

Result<void> blocking_write_folder(const fs::path& folder, std::span<const TensorView> tensors,
                                   const ModelFiles& files) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) return failed(folder, code);
  for (const auto& [name, text] : files) WEFT_TRY_VOID(blocking_write_file(folder / name, text));
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) specs.push_back(tensor.spec);
  WEFT_TRY(const std::string header, make_safetensors_header(specs, {{"format", "pt"}}));
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header))};
  for (const TensorView& tensor : tensors) parts.push_back(tensor.data);
  return blocking_write_file(folder / kWeights, parts);
}

Result<void> blocking_point_at(const fs::path& directory, const std::string& name) {
  const fs::path link = directory / fmt::format(".{}", kCurrent);
  std::error_code code;
  fs::remove(link, code);
  fs::create_directory_symlink(name, link, code);
  if (!code) fs::rename(link, directory / kCurrent, code);
  if (code) return failed(link, code);
  return blocking_sync_folder(directory);
}

void blocking_remove_others(const fs::path& directory, const std::string& kept) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(directory, code)) {
    if (entry.is_directory() && !entry.is_symlink() && entry.path().filename() != kept)
      fs::remove_all(entry.path(), code);
  }
}

}  // namespace

Result<void> blocking_save_state(const fs::path& directory, std::span<const TensorView> tensors,
                                 const ModelFiles& files, const VersionName& version) {
  const std::string name = folder_name(version.id);
  std::error_code code;
  const bool is_current = fs::read_symlink(directory / kCurrent, code) == name;
  if (!is_current) WEFT_TRY_VOID(blocking_write_folder(directory / name, tensors, files));
  const json::object record{
      {"id", version.id}, {"label", version.label}, {"converted", version.converted}};
  WEFT_TRY_VOID(blocking_write_file(directory / name / kRecord, json::serialize(record)));
  WEFT_TRY_VOID(blocking_sync_folder(directory / name));
  if (is_current) return {};
  WEFT_TRY_VOID(blocking_point_at(directory, name));
  blocking_remove_others(directory, name);
  return {};
}

Result<std::optional<SavedState>> blocking_find_state(const fs::path& directory) {
  std::error_code code;
  if (!fs::exists(directory / kCurrent, code)) return std::optional<SavedState>();
  SavedState state;
  state.folder = fs::canonical(directory / kCurrent, code);
  if (code) return failed(directory / kCurrent, code);
  WEFT_TRY(const std::string text, blocking_read_file(state.folder / kRecord));
  const auto record = parse_json(text);
  const auto* const object = record ? record->if_object() : nullptr;
  const auto* const id = object == nullptr ? nullptr : object->if_contains("id");
  const auto* const label = object == nullptr ? nullptr : object->if_contains("label");
  if (id == nullptr || !id->is_string() || label == nullptr || !label->is_string()) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}: expected an id and a label", (state.folder / kRecord).string()));
  }
  state.version.id = std::string(id->get_string());
  state.version.label = std::string(label->get_string());
  return std::optional(std::move(state));
}

}  // namespace weft
