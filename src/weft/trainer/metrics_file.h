#pragma once
// MetricsFile: metrics.jsonl, one line a step, appended to. One thread.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"

namespace weft {

class MetricsFile {
 public:
  // An empty file; one that is there is replaced. Blocks. Errors: those of files.
  static Result<MetricsFile> blocking_create(const std::filesystem::path& path);
  // The file as it is, without what follows its first `count` lines. Blocks. Errors: kCorrupt when
  // it has fewer.
  static Result<MetricsFile> blocking_reopen(const std::filesystem::path& path, std::size_t count);

  MetricsFile(MetricsFile&& other) noexcept;
  MetricsFile& operator=(MetricsFile&& other) noexcept;
  ~MetricsFile();

  // What blocking_reopen() kept.
  const std::vector<std::string>& lines() const { return lines_; }

  // Readers see the whole line when this returns. Blocks. Errors: kNoSpace and others of files.
  Result<void> blocking_append(std::string_view line);
  // All lines survive a power cut when this returns. Blocks.
  Result<void> blocking_sync();

 private:
  MetricsFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::filesystem::path path_;
  int fd_;
  std::vector<std::string> lines_;
};

}  // namespace weft
