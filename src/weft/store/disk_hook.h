#pragma once
// Where tests come between a store and its disk.

#include <filesystem>
#include <functional>

#include "weft/base/result.h"

namespace weft {

enum class DiskStep {
  kMakeDir,
  kCreate,
  kWrite,
  kRename,
  kLink,
  kRemove,
  kSyncFile,
  kSyncDir,
  kSyncAll
};

// Called before each change on disk, from any thread; an error stands for the change having failed.
// `from`: of a rename or a link, whose target is `path`.
using DiskHook = std::function<Result<void>(DiskStep step, const std::filesystem::path& path,
                                            const std::filesystem::path& from)>;

}  // namespace weft
