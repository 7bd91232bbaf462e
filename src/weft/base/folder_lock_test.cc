#include "weft/base/folder_lock.h"

#include <string>

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "weft/base/file.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

Result<FolderLock> take(const std::filesystem::path& folder) {
  return FolderLock::blocking_take(folder, "shed", "tools");
}

TEST(FolderLock, KeepsOthersOutWhileItLives) {
  const TemporaryDir dir;
  {
    const auto mine = take(dir / "deep/er").value();
    const auto second = take(dir / "deep/er");
    EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
    EXPECT_EQ(second.error().message(), fmt::format("{}: process {} has this shed open",
                                                    (dir / "deep/er").string(), ::getpid()));
  }
  EXPECT_TRUE(take(dir / "deep/er"));
}

TEST(FolderLock, TakesNoFolderOfSomethingElse) {
  const TemporaryDir dir;
  ASSERT_TRUE(blocking_write_file(dir / "letter", "dear"));
  EXPECT_EQ(take(dir.path()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(take(dir.path()).error().message(),
            fmt::format("{}: not empty, and no shed of weft", dir.path().string()));
  EXPECT_FALSE(std::filesystem::exists(dir / "lock"));

  std::filesystem::create_symlink("nowhere", dir / "tools");

  EXPECT_TRUE(take(dir.path()));
}

TEST(FolderLock, SaysWhyAFolderCannotBeUsed) {
  const TemporaryDir dir;
  ASSERT_TRUE(blocking_write_file(dir / "file", ""));
  for (const auto& folder : {dir / "file", dir / "file/in", std::filesystem::path("/proc/no")}) {
    const auto taken = take(folder);
    ASSERT_FALSE(taken) << folder;
    EXPECT_TRUE(taken.error().message().starts_with(folder.string() + ": cannot create: "))
        << taken.error().message();
  }
}

}  // namespace
}  // namespace weft
