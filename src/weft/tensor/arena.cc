#include "weft/tensor/arena.h"

#include <utility>

#include <fmt/core.h>
#include <sys/mman.h>

namespace weft {

Result<Arena> Arena::blocking_allocate(std::size_t size_bytes) {
  if (size_bytes == 0) return Arena(nullptr, 0);
  void* const data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Error(ErrorCode::kOverloaded, fmt::format("no memory for {} bytes", size_bytes));
  }
  // Huge pages where the kernel has them ready; MADV_POPULATE_WRITE then touches every page, and
  // says so instead of killing us when memory runs out. Older kernels do not know it: touch by
  // hand.
  ::madvise(data, size_bytes, MADV_HUGEPAGE);
  auto* const bytes = static_cast<std::byte*>(data);
  if (::madvise(data, size_bytes, MADV_POPULATE_WRITE) != 0) {
    constexpr std::size_t kPageBytes = 4096;
    for (std::size_t at = 0; at < size_bytes; at += kPageBytes) bytes[at] = std::byte{0};
  }
  return Arena(bytes, size_bytes);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace weft
