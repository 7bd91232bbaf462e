#include "weft/engine/kv_cache.h"

#include <new>
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

Result<KvCache> KvCache::create(const kernels::KvLayout& layout, std::size_t layers,
                                std::size_t pages) {
  const std::size_t layer_floats = pages * layout.page_floats();
  try {
    return KvCache(layout, layer_floats, make_aligned_floats(layers * layer_floats));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("no memory for a KV cache of {} bytes ({} pages of {} tokens)",
                             layers * layer_floats * sizeof(float), pages, layout.page_tokens));
  }
}

}  // namespace weft
