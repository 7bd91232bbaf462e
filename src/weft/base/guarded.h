#pragma once
// Guarded<T>: a value that can only be reached with its lock held. Thread-safe.

#include <mutex>
#include <utility>

namespace weft {

template <typename T>
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(T value) : value_(std::move(value)) {}

  // Calls `use(T&)` with the lock held and returns what it returns. Keep it short: no I/O, no
  // callbacks, no other lock inside.
  template <typename Use>
  auto with(Use&& use) {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(value_);
  }
  template <typename Use>
  auto with(Use&& use) const {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(static_cast<const T&>(value_));
  }

 private:
  mutable std::mutex mutex_;
  T value_;
};

}  // namespace weft
