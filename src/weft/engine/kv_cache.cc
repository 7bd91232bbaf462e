#include "weft/engine/kv_cache.h"

#include <cstdlib>
#include <numeric>

#include <fmt/core.h>

#include "weft/base/check.h"

namespace weft {

PagePool::PagePool(std::uint32_t pages) : references_(pages, 0), free_(pages) {
  std::iota(free_.rbegin(), free_.rend(), 0u);
}

std::optional<std::uint32_t> PagePool::try_take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t page = free_.back();
  free_.pop_back();
  references_[page] = 1;
  return page;
}

void PagePool::add_reference(std::uint32_t page) {
  WEFT_CHECK(references_.at(page) > 0);
  ++references_[page];
}

void PagePool::release(std::uint32_t page) {
  WEFT_CHECK(references_.at(page) > 0);
  if (--references_[page] == 0) free_.push_back(page);
}

void KvCache::Free::operator()(float* floats) const {
  std::free(floats);
}

Result<KvCache> KvCache::create(const kernels::KvLayout& layout, std::size_t layers,
                                std::size_t pages) {
  const std::size_t layer_floats = pages * layout.page_floats();
  const std::size_t size_bytes = layers * layer_floats * sizeof(float);
  constexpr std::size_t kVectorBytes = 64;
  // page_floats() is a multiple of 16 floats, so the size is one of the alignment.
  Floats floats(static_cast<float*>(std::aligned_alloc(kVectorBytes, size_bytes)));
  if (floats == nullptr) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("no memory for a KV cache of {} bytes ({} pages of {} tokens)",
                             size_bytes, pages, layout.page_tokens));
  }
  return KvCache(layout, layer_floats, std::move(floats));
}

}  // namespace weft
