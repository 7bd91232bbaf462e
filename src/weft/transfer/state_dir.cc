#include "weft/transfer/state_dir.h"

#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/digest/digest.h"
#include "weft/format/json.h"
#include "weft/format/safetensors.h"

namespace weft {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr const char* kCurrent = "current";
constexpr const char* kRecord = "weft-version.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kDigestPrefix = "blake3:";

// The hex digits of the id.
std::string folder_name(const std::string& id) {
  return id.substr(id.find(':') + 1);
}

Result<void> blocking_write_folder(const fs::path& folder, std::span<const TensorView> tensors,
                                   const ModelFiles& files) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) return file_error(folder, "create", code.value());
  for (const auto& [name, text] : files) WEFT_TRY_VOID(blocking_write_file(folder / name, text));
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) specs.push_back(tensor.spec);
  WEFT_TRY(const std::string header, make_safetensors_header(specs, {{"format", "pt"}}));
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header))};
  for (const TensorView& tensor : tensors) parts.push_back(tensor.data);
  return blocking_write_file(folder / kWeights, parts);
}

// A text of the record. Errors: kCorrupt.
Result<std::string> member_of(const json::value& record, const char* name) {
  const auto* const object = record.if_object();
  const auto* const value = object == nullptr ? nullptr : object->if_contains(name);
  if (value != nullptr && value->is_string()) return std::string(value->get_string());
  return Error(ErrorCode::kCorrupt, fmt::format("expected an object with `{}`", name));
}

Result<void> parse_record(std::string_view text, SavedState& state) {
  const auto record = parse_json(text);
  if (!record) return Error(ErrorCode::kCorrupt, record.error().message());
  WEFT_TRY(state.id, member_of(*record, "id"));
  WEFT_TRY(state.label, member_of(*record, "label"));
  return {};
}

}  // namespace

Result<std::shared_ptr<StateDir>> StateDir::blocking_open(const fs::path& directory) {
  WEFT_TRY(auto lock, FolderLock::blocking_take(directory, "state directory", kCurrent));
  const std::shared_ptr<StateDir> state(new StateDir(directory, std::move(lock)));
  auto saved = state->blocking_find();
  if (!saved) return state->unusable(saved.error());
  state->saved_ = *std::move(saved);
  return state;
}

Result<std::optional<SavedState>> StateDir::blocking_find() const {
  const fs::path link = directory_ / kCurrent;
  std::error_code code;
  const auto status = fs::symlink_status(link, code);
  if (status.type() == fs::file_type::not_found) return std::optional<SavedState>();
  if (!fs::is_symlink(status))
    return Error(ErrorCode::kCorrupt, fmt::format("{}: expected a link", link.string()));
  SavedState state;
  state.folder = fs::canonical(link, code);
  if (code) return file_error(link, "follow", code.value());
  WEFT_TRY(const std::string text, blocking_read_file(state.folder / kRecord));
  if (auto parsed = parse_record(text, state); !parsed)
    return std::move(parsed).error().with_context((state.folder / kRecord).string());
  return std::optional(std::move(state));
}

Error StateDir::unusable(const Error& error) const {
  return {error.code(), fmt::format("{}; to start as if nothing had been saved, remove {}",
                                    error.message(), (directory_ / kCurrent).string())};
}

Result<void> StateDir::check_saved(const std::string& id) const {
  if (!saved_ || saved_->id == id) return {};
  return unusable(Error(ErrorCode::kCorrupt,
                        fmt::format("{}: what was saved is damaged: it is {}, and {} says {}",
                                    saved_->folder.string(), id, kRecord, saved_->id)));
}

Result<void> StateDir::blocking_save(std::span<const TensorView> tensors, const ModelFiles& files,
                                     const std::string& id, const std::string& label) {
  const std::string name = folder_name(id);
  const fs::path folder = directory_ / name;
  std::error_code code;
  const bool is_current = fs::read_symlink(directory_ / kCurrent, code) == name;
  if (!is_current) WEFT_TRY_VOID(blocking_write_folder(folder, tensors, files));
  const json::object record{{"id", id}, {"label", label}};
  WEFT_TRY_VOID(blocking_write_file(folder / kRecord, json::serialize(record)));
  WEFT_TRY_VOID(blocking_sync_folder(folder));
  if (is_current) return {};
  WEFT_TRY_VOID(blocking_point_at(name));
  blocking_remove_others(name);
  return {};
}

Result<void> StateDir::blocking_point_at(const std::string& name) const {
  const fs::path link = directory_ / fmt::format(".{}", kCurrent);
  std::error_code code;
  fs::remove(link, code);
  fs::create_directory_symlink(name, link, code);
  if (!code) fs::rename(link, directory_ / kCurrent, code);
  if (code) return file_error(directory_ / kCurrent, "replace", code.value());
  return blocking_sync_folder(directory_);
}

// Of versions; what else somebody may have put there stays.
void StateDir::blocking_remove_others(const std::string& kept) const {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(directory_, code)) {
    const std::string name = entry.path().filename().string();
    if (name != kept && try_parse_digest(kDigestPrefix + name)) fs::remove_all(entry.path(), code);
  }
}

}  // namespace weft
