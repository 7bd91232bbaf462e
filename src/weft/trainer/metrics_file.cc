#include "weft/trainer/metrics_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "weft/base/file.h"

namespace weft {

Result<MetricsFile> MetricsFile::blocking_create(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return file_error(path, "create", errno);
  return MetricsFile(path, fd);
}

Result<MetricsFile> MetricsFile::blocking_reopen(const std::filesystem::path& path,
                                                 std::size_t count) {
  WEFT_TRY(const std::string text, blocking_read_file(path));
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return file_error(path, "open", errno);
  MetricsFile file(path, fd);
  std::size_t begin = 0;
  while (file.lines_.size() < count) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} has {} lines, the saved state {} steps",
                                                    path.string(), file.lines_.size(), count));
    }
    file.lines_.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (::ftruncate(fd, static_cast<off_t>(begin)) != 0) return file_error(path, "cut", errno);
  return file;
}

MetricsFile::MetricsFile(MetricsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      lines_(std::move(other.lines_)) {}

MetricsFile& MetricsFile::operator=(MetricsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(lines_, other.lines_);
  return *this;
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> MetricsFile::blocking_append(std::string_view line) {
  std::string text = fmt::format("{}\n", line);
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t written = ::write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(path_, "write", errno);
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> MetricsFile::blocking_sync() {
  if (::fsync(fd_) != 0) return file_error(path_, "sync", errno);
  return {};
}

}  // namespace weft
