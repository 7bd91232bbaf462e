#pragma once
// Arena: one large block of memory, mapped once, touched once, kept for good. Weight sets live in
// it. Thread-compatible; writers of disjoint parts may run side by side.

#include <cstddef>
#include <span>

#include "weft/base/result.h"

namespace weft {

class Arena {
 public:
  // Maps and touches `size_bytes` (0 is fine), so that no page fault lands in a timed path: first
  // touch of 1.19 GB costs 0.2 to 0.5 s. Blocks. Errors: kOverloaded with the number of bytes when
  // the system has no such memory.
  static Result<Arena> blocking_allocate(std::size_t size_bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // Aligned to a page.
  std::span<std::byte> bytes() { return {data_, size_bytes_}; }
  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }

 private:
  Arena(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace weft
