#include "weft/transfer/pull_targets.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <boost/json.hpp>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/base/file.h"
#include "weft/checkpoint/model_files.h"
#include "weft/format/safetensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kIdDigits = 16;  // of the id, in the name of an unfinished folder

// Absolute, without a slash at its end.
fs::path plain_path(const fs::path& folder) {
  std::error_code ignored;
  return (fs::absolute(folder, ignored) / "").lexically_normal().parent_path();
}

std::vector<TensorSpec> specs_of(const Manifest& manifest) {
  std::vector<TensorSpec> specs;
  for (const ManifestTensor& tensor : manifest.tensors) specs.push_back(tensor.spec);
  return specs;
}

// Does the manifest have only files that belong to a model?
Result<void> check_files(const Manifest& manifest) {
  std::uint64_t left = kMaxModelFilesBytes;
  for (const ManifestFile& file : manifest.files) {
    if (!is_model_file(file.name)) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("the version has a file `{}`, which no model folder has", file.name));
    }
    if (file.size_bytes > left) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("the version's files have more than {} bytes", kMaxModelFilesBytes));
    }
    left -= file.size_bytes;
  }
  return {};
}

// The runs of tensors that share a file.
std::vector<std::span<const ManifestTensor>> shards_of(const Manifest& manifest,
                                                       std::uint64_t shard_bytes) {
  std::vector<std::span<const ManifestTensor>> shards;
  const std::span<const ManifestTensor> all = manifest.tensors;
  std::size_t begin = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint64_t size = tensor_size_bytes(all[i].spec).value();
    if (i > begin && bytes + size > shard_bytes) {
      shards.push_back(all.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += size;
  }
  shards.push_back(all.subspan(begin));
  return shards;
}

std::string index_json(const std::vector<std::span<const ManifestTensor>>& shards,
                       const std::vector<std::string>& names) {
  boost::json::object map;
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const ManifestTensor& tensor : shards[i]) {
      map[tensor.spec.name] = names[i];
      total_bytes += tensor_size_bytes(tensor.spec).value();
    }
  }
  return boost::json::serialize(boost::json::object{
      {"metadata", boost::json::object{{"total_size", total_bytes}}}, {"weight_map", map}});
}

}  // namespace

Result<PullTarget::Held> MemoryTarget::blocking_prepare(const std::string&,
                                                        const Manifest& manifest,
                                                        const VersionDigests&) {
  WEFT_TRY_VOID(check_files(manifest));
  std::vector<TensorSpec> specs = specs_of(manifest);
  if (weights_ && otherwise_ == Otherwise::kAllocate && weights_->layout().tensors() != specs) {
    weights_ = nullptr;
  }
  if (!weights_) {
    WEFT_TRY(WeightLayout layout, WeightLayout::make(std::move(specs)));
    WEFT_TRY(weights_,
             WeightSet::blocking_allocate(std::make_shared<const WeightLayout>(std::move(layout))));
  } else if (weights_->layout().tensors() != specs) {
    const auto& ours = weights_->layout().tensors();
    const auto [theirs, mine] = std::ranges::mismatch(specs, ours);
    const std::string& name = theirs != specs.end() ? theirs->name : mine->name;
    return Error(ErrorCode::kConflict,
                 fmt::format("the version is not of this model: they differ at {}", name));
  }
  entries_.clear();
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    entries_.push_back(weights_->tensor(i));
  }
  for (const ManifestFile& file : manifest.files) {
    std::string& text = files_[file.name];
    text.resize(static_cast<std::size_t>(file.size_bytes));
    entries_.push_back(std::as_writable_bytes(std::span(text)));
  }
  return Held{};
}

std::span<std::byte> MemoryTarget::place(std::size_t entry, std::uint64_t offset_bytes,
                                         std::span<std::byte> scratch) {
  return entries_[entry].subspan(static_cast<std::size_t>(offset_bytes), scratch.size());
}

Result<std::span<const std::byte>> MemoryTarget::blocking_read(std::size_t entry,
                                                               std::uint64_t offset_bytes,
                                                               std::span<std::byte> scratch) const {
  return std::span<const std::byte>(
      entries_[entry].subspan(static_cast<std::size_t>(offset_bytes), scratch.size()));
}

FolderTarget::FolderTarget(const fs::path& folder, std::uint64_t shard_bytes, Existing existing)
    : folder_(plain_path(folder)), shard_bytes_(shard_bytes), existing_(existing) {}

FolderTarget::~FolderTarget() {
  close_files();
}

void FolderTarget::close_files() {
  for (const OpenFile& file : files_) ::close(file.fd);
  files_.clear();
}

void FolderTarget::blocking_discard() {
  close_files();
  std::error_code ignored;
  if (!part_.empty()) fs::remove_all(part_, ignored);
}

Result<void> FolderTarget::blocking_check_existing() const {
  std::error_code failed;
  if (!fs::exists(folder_, failed)) return {};
  if (!fs::is_directory(folder_, failed)) {
    return Error(ErrorCode::kConflict, fmt::format("{}: is no folder", folder_.string()));
  }
  for (const auto& each : fs::directory_iterator(folder_, failed)) {
    const std::string name = each.path().filename().string();
    if (existing_ == Existing::kRefuse) {
      return Error(ErrorCode::kConflict,
                   fmt::format("{}: is there already, with `{}` in it", folder_.string(), name));
    }
    if (!is_model_file(name) && !name.ends_with(".safetensors") &&
        name != "model.safetensors.index.json") {
      return Error(ErrorCode::kConflict,
                   fmt::format("{}: has `{}` in it, which is not a model's, and is not replaced",
                               folder_.string(), name));
    }
  }
  if (failed) return file_error(folder_, "list", failed.value());
  return {};
}

Result<PullTarget::Held> FolderTarget::blocking_prepare(const std::string& id,
                                                        const Manifest& manifest,
                                                        const VersionDigests&) {
  WEFT_TRY_VOID(check_files(manifest));
  WEFT_TRY_VOID(blocking_check_existing());
  const std::string digits = id.substr(id.find(':') + 1, kIdDigits);
  part_ = folder_.parent_path() / fmt::format(".{}.{}.part", folder_.filename().string(), digits);
  std::error_code failed;
  const bool resumes = fs::exists(part_, failed);
  if (!fs::create_directories(part_, failed) && failed) {
    return file_error(part_, "create", failed.value());
  }
  WEFT_TRY_VOID(blocking_create_shards(manifest));
  for (const ManifestFile& file : manifest.files) {
    WEFT_TRY_VOID(blocking_create(file.name, file.size_bytes, ""));
    entries_.push_back({files_.size() - 1, 0});
  }
  return Held{.maybe_more = resumes};
}

Result<void> FolderTarget::blocking_create_shards(const Manifest& manifest) {
  const auto shards = shards_of(manifest, shard_bytes_);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    names.push_back(shards.size() == 1
                        ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    std::vector<TensorSpec> specs;
    for (const ManifestTensor& tensor : shards[i]) specs.push_back(tensor.spec);
    // transformers refuses files that do not say that their tensors are torch's.
    WEFT_TRY(const std::string header, make_safetensors_header(specs, {{"format", "pt"}}));
    std::uint64_t end = header.size();
    for (const TensorSpec& spec : specs) {
      entries_.push_back({files_.size(), end});
      end += tensor_size_bytes(spec).value();
    }
    WEFT_TRY_VOID(blocking_create(names.back(), end, header));
  }
  if (shards.size() == 1) return {};
  return blocking_write_file(part_ / "model.safetensors.index.json", index_json(shards, names));
}

// Opens or makes the file, at its size and with `header` in front.
Result<void> FolderTarget::blocking_create(const std::string& name, std::uint64_t size_bytes,
                                           std::string_view header) {
  const fs::path path = part_ / name;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return file_error(path, "create", errno);
  files_.push_back({path, fd});
  if (::ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) {
    return file_error(path, "enlarge", errno);
  }
  return blocking_write_at(files_.back(), 0, std::as_bytes(std::span(header)));
}

Result<void> FolderTarget::blocking_write(std::size_t entry, std::uint64_t offset_bytes,
                                          std::span<const std::byte> bytes) {
  return blocking_write_at(files_[entries_[entry].file],
                           entries_[entry].offset_bytes + offset_bytes, bytes);
}

Result<void> FolderTarget::blocking_write_at(const OpenFile& file, std::uint64_t offset_bytes,
                                             std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(file.fd, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(file.path, "write", errno);
    offset_bytes += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<std::span<const std::byte>> FolderTarget::blocking_read(std::size_t entry,
                                                               std::uint64_t offset_bytes,
                                                               std::span<std::byte> scratch) const {
  const OpenFile& file = files_[entries_[entry].file];
  std::uint64_t offset = entries_[entry].offset_bytes + offset_bytes;
  for (std::span<std::byte> left = scratch; !left.empty();) {
    const ssize_t count = ::pread(file.fd, left.data(), left.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(file.path, "read", errno);
    if (count == 0) {
      return Error(ErrorCode::kInternal,
                   fmt::format("{}: was cut while it was written", file.path.string()));
    }
    offset += static_cast<std::uint64_t>(count);
    left = left.subspan(static_cast<std::size_t>(count));
  }
  return std::span<const std::byte>(scratch);
}

// Files, then the folder that names them, then the name that makes them the version.
Result<void> FolderTarget::blocking_finish() {
  for (const OpenFile& file : files_) {
    if (::fsync(file.fd) != 0) return file_error(file.path, "sync", errno);
  }
  WEFT_TRY_VOID(blocking_sync_folder(part_));
  WEFT_TRY_VOID(blocking_rename());
  return blocking_sync_folder(folder_.parent_path());
}

Result<void> FolderTarget::blocking_rename() const {
  std::error_code failed;
  // Where there is one already, each name always stands for a whole folder.
  const bool exchanges = existing_ == Existing::kReplace && fs::exists(folder_, failed);
  if (::renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, folder_.c_str(),
                  exchanges ? RENAME_EXCHANGE : 0) != 0) {
    return file_error(folder_, "rename the finished folder to this name", errno);
  }
  if (exchanges) fs::remove_all(part_, failed);
  return {};
}

}  // namespace weft
