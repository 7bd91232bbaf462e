#pragma once
// Disk: every change that a store makes in its folder is one step here, so that tests can crash or
// fail before each of them. Thread-safe; calls block.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "weft/base/result.h"
#include "weft/store/disk_hook.h"

namespace weft::store {

// 0 when there is no such file.
std::uint64_t file_bytes(const std::filesystem::path& path);

// A new file that is being written. One thread. What becomes of it afterwards is the owner's.
class NewFile {
 public:
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&& other) noexcept;
  ~NewFile();

  // Into the page cache; nothing is synced. Errors: kNoSpace, kInternal.
  Result<void> append(std::span<const std::byte> bytes);
  const std::filesystem::path& path() const { return path_; }

 private:
  friend class Disk;
  NewFile(const class Disk& disk, int fd, std::filesystem::path path)
      : disk_(&disk), fd_(fd), path_(std::move(path)) {}

  const Disk* disk_;
  int fd_;
  std::filesystem::path path_;
};

// Errors, where nothing else is said: kNoSpace, kForbidden, kNotFound, kInternal; the message names
// the path.
class Disk {
 public:
  explicit Disk(DiskHook hook) : hook_(std::move(hook)) {}

  Result<void> make_dirs(const std::filesystem::path& path) const;
  // Empty, in place of what may be there.
  Result<NewFile> create(const std::filesystem::path& path) const;
  Result<void> write(const std::filesystem::path& path, std::string_view bytes) const;
  // Durable when it returns: readers see the old file or the whole new one, after a crash too.
  Result<void> replace(const std::filesystem::path& path, std::string_view bytes) const;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  // A second name for the same bytes; one that is there stays as it is.
  Result<void> link(const std::filesystem::path& from, const std::filesystem::path& to) const;
  // Gone already: fine.
  Result<void> remove(const std::filesystem::path& path) const;
  Result<void> remove_all(const std::filesystem::path& path) const;
  // All that was written to the file system of `path` until now, names too, is durable when it
  // returns.
  Result<void> sync_all(const std::filesystem::path& path) const;

 private:
  friend class NewFile;
  Result<void> step(DiskStep step, const std::filesystem::path& path,
                    const std::filesystem::path& from = {}) const;
  Result<void> sync(const std::filesystem::path& path, bool is_dir) const;

  DiskHook hook_;
};

}  // namespace weft::store
