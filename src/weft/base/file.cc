#include "weft/base/file.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft {
namespace {

Result<void> write_all(int fd, std::span<const std::byte> bytes,
                       const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

Error file_error(const std::filesystem::path& path, const char* doing, int error) {
  ErrorCode code = ErrorCode::kInternal;
  if (error == ENOENT || error == ENOTDIR) code = ErrorCode::kNotFound;
  if (error == EACCES || error == EPERM || error == EROFS) code = ErrorCode::kForbidden;
  if (error == ENOSPC || error == EDQUOT) code = ErrorCode::kNoSpace;
  return {code, fmt::format("{}: cannot {}: {}", path.string(), doing,
                            std::generic_category().message(error))};
}

Result<File> File::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return file_error(path, "open", errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return file_error(path, "open", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error(ErrorCode::kInvalidArgument, fmt::format("{}: not a regular file", path.string()));
  }
  return File(fd, static_cast<std::uint64_t>(info.st_size), path);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_),
      path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_bytes_, other.size_bytes_);
  path_.swap(other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> File::blocking_read_at(std::uint64_t offset, std::span<std::byte> out) const {
  // One pread moves at most 2^31 - 4096 bytes on Linux, so this loops whatever the size.
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path_, "read", errno);
    if (count == 0) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format("{}: ends at byte {}, {} bytes before the end of what was to be read",
                      path_.string(), offset, out.size()));
    }
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Result<std::string> blocking_read_file(const std::filesystem::path& path,
                                       std::uint64_t limit_bytes) {
  WEFT_TRY(const File file, File::open(path));
  if (file.size_bytes() > limit_bytes) {
    return Error(ErrorCode::kTooLarge, fmt::format("{}: {} bytes, at most {} are read",
                                                   path.string(), file.size_bytes(), limit_bytes));
  }
  std::string text(file.size_bytes(), '\0');
  WEFT_TRY_VOID(file.blocking_read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<void> blocking_write_file(const std::filesystem::path& path,
                                 std::span<const std::span<const std::byte>> parts) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return file_error(path, "create", errno);
  Result<void> written;
  for (const auto part : parts) {
    if (written) written = write_all(fd, part, path);
  }
  if (written && ::fsync(fd) != 0) written = file_error(path, "sync", errno);
  if (::close(fd) != 0 && written) written = file_error(path, "close", errno);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = file_error(path, "replace", errno);
  }
  if (!written) ::unlink(temporary.c_str());
  return written;
}

Result<void> blocking_write_file(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  return blocking_write_file(path, std::span(&part, 1));
}

Result<void> blocking_sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return file_error(folder, "open", errno);
  const int failed = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (failed != 0) return file_error(folder, "sync", failed);
  return {};
}

}  // namespace weft
