#pragma once
// The state directory of a receiver: the version that was committed last, as a model folder that a
// restart serves again. Each version has a folder of its own; the link `current` moves to it when
// it is complete.

#include <filesystem>
#include <optional>
#include <span>

#include "weft/base/result.h"
#include "weft/checkpoint/model_files.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// Makes this version the current one; older ones are removed. The same version again: only its
// label is written. Errors: as blocking_write_file. Blocks.
Result<void> blocking_save_state(const std::filesystem::path& directory,
                                 std::span<const TensorView> tensors, const ModelFiles& files,
                                 const VersionName& version);

struct SavedState {
  std::filesystem::path folder;  // a model folder: its files and model.safetensors
  VersionName version;
};
// Nothing where no version was saved. Errors: kCorrupt naming what cannot be read. Blocks.
Result<std::optional<SavedState>> blocking_find_state(const std::filesystem::path& directory);

}  // namespace weft
