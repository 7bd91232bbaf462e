#pragma once
// The state directory of a receiver: the version that was committed last, as a model folder that a
// restart serves again. Each version has a folder of its own; the link `current` moves to it when
// it is complete.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "weft/base/folder_lock.h"
#include "weft/base/result.h"
#include "weft/checkpoint/model_files.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/weight_set.h"

namespace weft {

struct SavedState {
  std::filesystem::path folder;  // a model folder: its files and model.safetensors
  std::string id;                // of what was written there
  std::string label;
};

// One process has a directory at a time. One thread.
class StateDir {
 public:
  // Makes the directory where there is none. Errors: as FolderLock; kCorrupt and as
  // blocking_read_file, made unusable(), for what was saved and cannot be read. Blocks.
  static Result<std::shared_ptr<StateDir>> blocking_open(const std::filesystem::path& directory);

  // What was saved when it was opened; nothing: no version was.
  const std::optional<SavedState>& saved() const { return saved_; }
  // Is what was saved, as it was read, the version `id`? Errors: kCorrupt, made unusable().
  Result<void> check_saved(const std::string& id) const;
  // An error of what was saved, and what helps.
  Error unusable(const Error& error) const;

  // Makes this version the current one; older ones are removed. The same version again: only its
  // label is written. `id`: of these tensors and files. Errors: as blocking_write_file. Blocks.
  Result<void> blocking_save(std::span<const TensorView> tensors, const ModelFiles& files,
                             const std::string& id, const std::string& label);

 private:
  StateDir(std::filesystem::path directory, FolderLock lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}

  Result<std::optional<SavedState>> blocking_find() const;
  Result<void> blocking_point_at(const std::string& name) const;
  void blocking_remove_others(const std::string& kept) const;

  const std::filesystem::path directory_;
  const FolderLock lock_;
  std::optional<SavedState> saved_;
};

}  // namespace weft
