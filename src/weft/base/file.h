#pragma once
// Files, read with pread and written whole. No memory maps: a mapped file that shrinks kills the
// process with SIGBUS, a short pread is an error that can be returned.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "weft/base/result.h"

namespace weft {

// What a failed call on `path` means: "PATH: cannot DOING: ...", with the code of `error` (errno).
Error file_error(const std::filesystem::path& path, const char* doing, int error);

// An open file for reading. Thread-compatible: read_at from several threads is fine.
class File {
 public:
  // Errors: kNotFound, kForbidden, kInvalidArgument (no regular file), kInternal; the message names
  // the path.
  static Result<File> open(const std::filesystem::path& path);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  std::uint64_t size_bytes() const { return size_bytes_; }
  const std::filesystem::path& path() const { return path_; }
  // For sendfile(2) and its like. Lives as long as this.
  int descriptor() const { return fd_; }

  // Fills all of `out` from `offset`. Blocks.
  // Errors: kCorrupt if the file ends before (it may have shrunk since it was opened).
  Result<void> blocking_read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File(int fd, std::uint64_t size_bytes, std::filesystem::path path)
      : fd_(fd), size_bytes_(size_bytes), path_(std::move(path)) {}

  int fd_ = -1;
  std::uint64_t size_bytes_ = 0;
  std::filesystem::path path_;
};

// The whole file. Errors: as File::open; kTooLarge over `limit_bytes`. Blocks.
Result<std::string> blocking_read_file(const std::filesystem::path& path,
                                       std::uint64_t limit_bytes = 64ull << 20);

// Writes `parts` one after the other to a temporary file beside `path`, then renames it: readers
// see the old file or the whole new one. Errors: kForbidden, kNoSpace, kInternal. Blocks.
Result<void> blocking_write_file(const std::filesystem::path& path,
                                 std::span<const std::span<const std::byte>> parts);
Result<void> blocking_write_file(const std::filesystem::path& path, std::string_view text);

// Makes what was made, renamed and removed in a folder survive a power cut: fsync(2). Errors:
// file_error().
Result<void> blocking_sync_folder(const std::filesystem::path& folder);

}  // namespace weft
