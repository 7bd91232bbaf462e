#pragma once
// The memory of keys and values: pages of positions, handed out by number and counted.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "weft/base/result.h"
#include "weft/engine/aligned_floats.h"
#include "weft/kernels/attention.h"

namespace weft {

// Which pages are free, and how many hold on to each of the others. One thread.
class PagePool {
 public:
  explicit PagePool(std::uint32_t pages);

  // A page with one reference; nothing when none is free. The page freed last comes first: its
  // memory is the warmest.
  std::optional<std::uint32_t> try_take();
  // Requires, both: the page is taken. The last release frees it.
  void add_reference(std::uint32_t page);
  void release(std::uint32_t page);

  std::uint32_t references(std::uint32_t page) const { return references_.at(page); }
  std::size_t total_pages() const { return references_.size(); }
  std::size_t free_pages() const { return free_.size(); }

 private:
  std::vector<std::uint32_t> references_;  // [pages], 0: free
  std::vector<std::uint32_t> free_;
};

// The pages' floats: [layers, pages, layout.page_floats()]. One thread, save that writers of
// different slots and readers of written ones may run side by side.
class KvCache {
 public:
  // Memory is touched when a page is first used, not here. Errors: kOverloaded with the number of
  // bytes.
  static Result<KvCache> create(const kernels::KvLayout& layout, std::size_t layers,
                                std::size_t pages);

  kernels::KvLayer layer(std::size_t layer) const {
    return {layout_, floats_.get() + layer * layer_floats_};
  }

 private:
  KvCache(const kernels::KvLayout& layout, std::size_t layer_floats, AlignedFloats floats)
      : layout_(layout), layer_floats_(layer_floats), floats_(std::move(floats)) {}

  kernels::KvLayout layout_;
  std::size_t layer_floats_;
  AlignedFloats floats_;
};

}  // namespace weft
