#pragma once
// TemporaryDir: a directory of a test's own, removed with all in it when the test ends. One thread.

#include <filesystem>
#include <string_view>

namespace weft {

class TemporaryDir {
 public:
  // Blocks. Aborts if the directory cannot be made.
  TemporaryDir();
  ~TemporaryDir();
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The source tree and the build tree, as CTest tells them (WEFT_SOURCE_DIR, WEFT_BINARY_DIR).
// Without it, the working directory.
std::filesystem::path source_dir();
std::filesystem::path binary_dir();

}  // namespace weft
