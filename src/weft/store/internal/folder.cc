#include "weft/store/internal/folder.h"

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include "weft/base/file.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

Result<void> make_folder(const Layout& layout) {
  std::error_code error;
  fs::create_directories(layout.root, error);
  if (error) return file_error(layout.root, "create", error.value());
  const bool is_store = fs::exists(layout.lock(), error) || fs::exists(layout.catalog(), error);
  if (is_store || fs::is_empty(layout.root, error)) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}: not empty, and no store of weft", layout.root.string()));
}

std::string text_in(int fd) {
  std::array<char, 32> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  return {text.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
}

}  // namespace

Result<FolderLock> FolderLock::blocking_take(const Layout& layout) {
  WEFT_TRY_VOID(make_folder(layout));
  const int fd = ::open(layout.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return file_error(layout.lock(), "open", errno);
  FolderLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return file_error(layout.lock(), "lock", errno);
    return Error(ErrorCode::kConflict, fmt::format("{}: process {} has this store open",
                                                   layout.root.string(), text_in(fd)));
  }
  // For whoever finds it locked; a full disk must not keep a store from starting.
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

}  // namespace weft::store
