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

  // The next free page, with one reference; nothing when none is free.
  std::optional<std::uint32_t> try_take();
  // A free page is free no more.
  void add_reference(std::uint32_t page);
  // Requires a reference; the last release frees it. It is the next to be taken, for its memory is
  // the warmest, or with `keep`, because what it holds may be of use again, the last.
  void release(std::uint32_t page, bool keep = false);

  std::uint32_t references(std::uint32_t page) const { return references_.at(page); }
  std::size_t total_pages() const { return references_.size(); }
  std::size_t free_pages() const { return free_pages_; }

 private:
  struct Link {
    std::uint32_t before = 0, after = 0;
  };
  void insert(std::uint32_t page, std::uint32_t before);
  void unlink(std::uint32_t page);

  std::vector<std::uint32_t> references_;  // [pages], 0: free
  // A ring of the free pages in the order in which they are taken; the one past the last page is
  // its start and end.
  std::vector<Link> links_;  // [pages + 1]
  std::size_t free_pages_ = 0;
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
