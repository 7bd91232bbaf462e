#pragma once
// FolderLock: a folder that one process has at a time, and that holds nothing of anybody else.

#include <filesystem>
#include <string_view>

#include "weft/base/result.h"

namespace weft {

// The process has the folder while this lives.
class FolderLock {
 public:
  // Makes the folder where there is none, and in it the file `lock`. `what` the folder is, for
  // messages: "store". One that is not empty must have a lock, or `mark`, in it. Errors:
  // kInvalidArgument for a folder of something else; kConflict naming the process that has it; as
  // file_error where nothing can be made in it. Blocks.
  static Result<FolderLock> blocking_take(const std::filesystem::path& folder,
                                          std::string_view what, std::string_view mark);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace weft
