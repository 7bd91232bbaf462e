#include "weft/base/folder_lock.h"

#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include "weft/base/file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "lock";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

Result<void> blocking_make_folder(const fs::path& folder, std::string_view what,
                                  std::string_view mark) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return file_error(folder, "create", error.value());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return file_error(folder, "write", errno);
  if (is_there(folder / kLock) || is_there(folder / mark)) return {};
  const bool is_empty = fs::is_empty(folder, error);
  if (error) return file_error(folder, "read", error.value());
  if (is_empty) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}: not empty, and no {} of weft", folder.string(), what));
}

std::string text_in(int fd) {
  std::array<char, 32> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  return {text.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
}

}  // namespace

Result<FolderLock> FolderLock::blocking_take(const fs::path& folder, std::string_view what,
                                             std::string_view mark) {
  WEFT_TRY_VOID(blocking_make_folder(folder, what, mark));
  const fs::path path = folder / kLock;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return file_error(path, "open", errno);
  FolderLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return file_error(path, "lock", errno);
    return Error(ErrorCode::kConflict, fmt::format("{}: process {} has this {} open",
                                                   folder.string(), text_in(fd), what));
  }
  // For whoever finds it locked; a full disk must not keep anybody from starting.
  const std::string pid = fmt::format("{}", ::getpid());
  static_cast<void>(::ftruncate(fd, 0) == 0 && ::pwrite(fd, pid.data(), pid.size(), 0) > 0);
  return lock;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace weft
