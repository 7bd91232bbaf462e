#pragma once
// A store's folder, and the lock on it.

#include <filesystem>

#include "weft/base/result.h"
#include "weft/store/internal/layout.h"

namespace weft::store {

// While it lives no other process has the folder.
class FolderLock {
 public:
  // Makes the folder where there is none. Errors: as Store::blocking_open.
  static Result<FolderLock> blocking_take(const Layout& layout);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace weft::store
