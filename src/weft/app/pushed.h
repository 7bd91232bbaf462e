#pragma once
// What `weft push` pushed last to each server, remembered on this machine: the next push goes as
// what changed since, as long as those files are still what they were. A hint, no more: the server
// decides whether it has the base, and checks what comes of it.

#include <filesystem>
#include <optional>
#include <string>

#include "weft/base/result.h"

namespace weft {

struct PushedVersion {
  std::string to;     // the server's URL
  std::string id;     // of the version there
  std::string path;   // of the files here, absolute
  std::string stamp;  // of_files() when they were pushed
};

class PushedVersions {
 public:
  // What is remembered in `file`; it need not exist. "": nothing ever is.
  explicit PushedVersions(std::filesystem::path file) : file_(std::move(file)) {}
  // Of this user: weft/pushed.json under $XDG_STATE_HOME, else under ~/.local/state.
  static PushedVersions of_user();

  // The last one to this server, if its files have the same stamp still. Blocks.
  std::optional<PushedVersion> blocking_find(const std::string& to) const;
  // Blocks. Errors: those of writing the file.
  Result<void> blocking_remember(PushedVersion version) const;

 private:
  std::filesystem::path file_;
};

// Tells whether the files of a folder, or a file, have been written since: names, sizes, inodes and
// times of change. "" where it cannot be read. Blocks.
std::string blocking_stamp(const std::filesystem::path& path);

}  // namespace weft
