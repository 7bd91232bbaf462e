#include "weft/tensor/weight_set.h"

#include <algorithm>

#include <fmt/core.h>

namespace weft {

Result<WeightLayout> WeightLayout::make(std::vector<TensorSpec> tensors) {
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  const auto twice = std::ranges::adjacent_find(tensors, {}, &TensorSpec::name);
  if (twice != tensors.end()) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{}: named twice", twice->name));
  }
  WeightLayout layout;
  for (const TensorSpec& spec : tensors) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(spec));
    const std::uint64_t offset = layout.size_bytes_;
    std::uint64_t end = 0;
    if (__builtin_add_overflow(offset, size_bytes, &end) || end > UINT64_MAX - kAlignmentBytes) {
      return Error(ErrorCode::kInvalidArgument, "the tensors have more than 2^64 bytes together");
    }
    layout.offsets_bytes_.push_back(offset);
    layout.sizes_bytes_.push_back(size_bytes);
    layout.payload_bytes_ += size_bytes;
    layout.size_bytes_ = (end + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
  layout.tensors_ = std::move(tensors);
  return layout;
}

std::optional<std::size_t> WeightLayout::try_find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors_, name, {}, &TensorSpec::name);
  if (at == tensors_.end() || at->name != name) return std::nullopt;
  return static_cast<std::size_t>(at - tensors_.begin());
}

Result<std::shared_ptr<WeightSet>> WeightSet::blocking_allocate(
    std::shared_ptr<const WeightLayout> layout) {
  WEFT_TRY(Arena arena, Arena::blocking_allocate(layout->size_bytes()));
  return std::shared_ptr<WeightSet>(new WeightSet(std::move(layout), std::move(arena)));
}

std::span<std::byte> WeightSet::tensor(std::size_t index) {
  return arena_.bytes().subspan(layout_->offset_bytes(index), layout_->tensor_bytes(index));
}

std::span<const std::byte> WeightSet::tensor(std::size_t index) const {
  return arena_.bytes().subspan(layout_->offset_bytes(index), layout_->tensor_bytes(index));
}

}  // namespace weft
