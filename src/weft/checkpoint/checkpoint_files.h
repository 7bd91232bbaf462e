#pragma once
// The weights of a Hugging Face model folder on disk: which file holds which tensor.

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/result.h"
#include "weft/format/safetensors.h"
#include "weft/tensor/tensor.h"

namespace weft {

// The weights of a folder (by model.safetensors.index.json, else model.safetensors, else the only
// .safetensors file) or of one .safetensors file. Files are open, tensors not read.
// Thread-compatible.
class CheckpointFiles {
 public:
  // Blocks. Errors name the file, and the tensor where there is one: kNotFound, kCorrupt,
  // kInvalidArgument (an index that points outside the folder, a tensor its file lacks).
  static Result<CheckpointFiles> blocking_open(const std::filesystem::path& path);

  struct Entry {
    TensorSpec spec;
    std::size_t file;
    std::uint64_t offset_bytes;  // in the file
  };
  const std::vector<Entry>& tensors() const { return tensors_; }  // sorted by name
  // Reads one tensor's bytes. Requires: out.size() is the tensor's size. Blocks.
  Result<void> blocking_read(const Entry& tensor, std::span<std::byte> out) const;
  // Reads `out.size()` of its bytes from `offset_bytes` on. Requires: it has them. Blocks.
  Result<void> blocking_read_at(const Entry& tensor, std::uint64_t offset_bytes,
                                std::span<std::byte> out) const;
  // The path of the file that holds it, for messages.
  const std::filesystem::path& path_of(const Entry& tensor) const;

 private:
  // Adds the tensors of one file: all of it, or those in `wanted`, which it must have.
  Result<void> blocking_add(const std::filesystem::path& path, const std::set<std::string>* wanted);
  Result<void> blocking_add_indexed(const std::filesystem::path& folder);

  std::vector<File> files_;
  std::vector<Entry> tensors_;
};

}  // namespace weft
