#include "weft/engine/kv_cache.h"

#include <new>

#include <fmt/core.h>

#include "weft/base/check.h"

namespace weft {

PagePool::PagePool(std::uint32_t pages) : references_(pages, 0), links_(std::size_t{pages} + 1) {
  links_[pages] = {pages, pages};
  for (std::uint32_t page = 0; page < pages; ++page) insert(page, pages);
}

std::optional<std::uint32_t> PagePool::try_take() {
  if (free_pages_ == 0) return std::nullopt;
  const std::uint32_t page = links_.back().after;
  add_reference(page);
  return page;
}

void PagePool::add_reference(std::uint32_t page) {
  if (references_.at(page)++ == 0) unlink(page);
}

void PagePool::release(std::uint32_t page, bool keep) {
  WEFT_CHECK(references_.at(page) > 0);
  const std::uint32_t end = static_cast<std::uint32_t>(references_.size());
  if (--references_[page] == 0) insert(page, keep ? end : links_[end].after);
}

void PagePool::insert(std::uint32_t page, std::uint32_t before) {
  links_[page] = {links_[before].before, before};
  links_[links_[page].before].after = page;
  links_[before].before = page;
  ++free_pages_;
}

void PagePool::unlink(std::uint32_t page) {
  const Link link = links_[page];
  links_[link.before].after = link.after;
  links_[link.after].before = link.before;
  --free_pages_;
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
