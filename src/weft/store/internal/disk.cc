#include "weft/store/internal/disk.h"

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "weft/base/file.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

// A file descriptor for the length of a block.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::uint64_t file_bytes(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

NewFile::NewFile(NewFile&& other) noexcept
    : disk_(other.disk_), fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

NewFile& NewFile::operator=(NewFile&& other) noexcept {
  std::swap(disk_, other.disk_);
  std::swap(fd_, other.fd_);
  path_.swap(other.path_);
  return *this;
}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> NewFile::append(std::span<const std::byte> bytes) {
  WEFT_TRY_VOID(disk_->step(DiskStep::kWrite, path_));
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path_, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<void> Disk::step(DiskStep step, const fs::path& path, const fs::path& from) const {
  return hook_ ? hook_(step, path, from) : Result<void>();
}

Result<void> Disk::make_dirs(const fs::path& path) const {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  WEFT_TRY_VOID(step(DiskStep::kMakeDir, path));
  fs::create_directories(path, error);
  return error ? file_error(path, "create", error.value()) : Result<void>();
}

Result<NewFile> Disk::create(const fs::path& path) const {
  WEFT_TRY_VOID(step(DiskStep::kCreate, path));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return file_error(path, "create", errno);
  return NewFile(*this, fd, path);
}

Result<void> Disk::write(const fs::path& path, std::string_view bytes) const {
  WEFT_TRY(NewFile file, create(path));
  return file.append(std::as_bytes(std::span(bytes)));
}

Result<void> Disk::replace(const fs::path& path, std::string_view bytes) const {
  fs::path temporary = path;
  temporary += ".tmp";
  const auto replaced = [&]() -> Result<void> {
    WEFT_TRY_VOID(write(temporary, bytes));
    WEFT_TRY_VOID(sync(temporary, false));
    WEFT_TRY_VOID(rename(temporary, path));
    return sync(path.parent_path(), true);
  }();
  if (!replaced) ::unlink(temporary.c_str());
  return replaced;
}

Result<void> Disk::rename(const fs::path& from, const fs::path& to) const {
  WEFT_TRY_VOID(step(DiskStep::kRename, to, from));
  if (::rename(from.c_str(), to.c_str()) != 0) return file_error(to, "create", errno);
  return {};
}

Result<void> Disk::link(const fs::path& from, const fs::path& to) const {
  WEFT_TRY_VOID(step(DiskStep::kLink, to, from));
  if (::link(from.c_str(), to.c_str()) != 0 && errno != EEXIST) {
    return file_error(to, "link", errno);
  }
  return {};
}

Result<void> Disk::remove(const fs::path& path) const {
  WEFT_TRY_VOID(step(DiskStep::kRemove, path));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return file_error(path, "remove", errno);
  return {};
}

Result<void> Disk::remove_all(const fs::path& path) const {
  WEFT_TRY_VOID(step(DiskStep::kRemove, path));
  std::error_code error;
  fs::remove_all(path, error);
  return error ? file_error(path, "remove", error.value()) : Result<void>();
}

Result<void> Disk::sync_all(const fs::path& path) const {
  WEFT_TRY_VOID(step(DiskStep::kSyncAll, path));
  const Descriptor dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (dir.get() < 0 || ::syncfs(dir.get()) != 0) return file_error(path, "sync", errno);
  return {};
}

Result<void> Disk::sync(const fs::path& path, bool is_dir) const {
  WEFT_TRY_VOID(step(is_dir ? DiskStep::kSyncDir : DiskStep::kSyncFile, path));
  if (is_dir) return blocking_sync_folder(path);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || ::fsync(file.get()) != 0) return file_error(path, "sync", errno);
  return {};
}

}  // namespace weft::store
