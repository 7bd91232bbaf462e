#pragma once
// A model's weights in memory: a layout fixed for the life of a server, and sets of bytes laid out
// by it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/arena.h"
#include "weft/tensor/tensor.h"

namespace weft {

// Which tensors a model has and where each lies in an arena. Immutable.
class WeightLayout {
 public:
  // Sorts by name (bytewise, the manifest's order) and places each tensor at a multiple of
  // kAlignmentBytes. Errors: kInvalidArgument for a name given twice or a size that overflows.
  static Result<WeightLayout> make(std::vector<TensorSpec> tensors);

  // A cache line and an AVX-512 vector.
  static constexpr std::size_t kAlignmentBytes = 64;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  std::uint64_t offset_bytes(std::size_t tensor) const { return offsets_bytes_.at(tensor); }
  std::uint64_t tensor_bytes(std::size_t tensor) const { return sizes_bytes_.at(tensor); }
  // Of the arena, padding included.
  std::uint64_t size_bytes() const { return size_bytes_; }
  // Of the tensors alone.
  std::uint64_t payload_bytes() const { return payload_bytes_; }
  std::optional<std::size_t> try_find(std::string_view name) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<std::uint64_t> offsets_bytes_;
  std::vector<std::uint64_t> sizes_bytes_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t payload_bytes_ = 0;
};

// One set of bytes. Written by one stager while it is nobody's; immutable from the moment it is
// shared as `const`. A server has at most two.
class WeightSet {
 public:
  // Errors: kOverloaded when there is no memory. Blocks.
  static Result<std::shared_ptr<WeightSet>> blocking_allocate(
      std::shared_ptr<const WeightLayout> layout);

  const WeightLayout& layout() const { return *layout_; }
  std::span<std::byte> tensor(std::size_t index);
  std::span<const std::byte> tensor(std::size_t index) const;

 private:
  WeightSet(std::shared_ptr<const WeightLayout> layout, Arena arena)
      : layout_(std::move(layout)), arena_(std::move(arena)) {}

  std::shared_ptr<const WeightLayout> layout_;
  Arena arena_;
};

// What a version is called. A value.
struct VersionName {
  std::string id;          // "blake3:..." of the manifest; decides
  std::string label;       // for people and for vLLM's fields, "default" until one is set
  bool converted = false;  // a dtype was converted on receipt, so the bytes are not the sender's
  bool corrupt = false;    // patched in place, then found not to be what it says: being taken back

  bool operator==(const VersionName&) const = default;
};

}  // namespace weft
