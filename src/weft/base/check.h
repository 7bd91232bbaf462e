#pragma once
// Checks for what cannot happen. Never for input: bytes from a socket, a file or a caller yield an
// Error.

#include <string_view>

namespace weft::internal {

// Prints `expression` with `detail` and the place, then aborts.
[[noreturn]] void check_failed(const char* expression, std::string_view detail,
                               const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace weft::internal

// Aborts if the condition is false: going on would be unsafe. Always compiled.
#define WEFT_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::weft::internal::check_failed(#condition, ""))

// As WEFT_CHECK, in debug, fuzz and sanitizer builds only.
#ifdef WEFT_DCHECKS
#define WEFT_DCHECK(condition) WEFT_CHECK(condition)
#else
#define WEFT_DCHECK(condition) static_cast<void>(sizeof(!(condition)))
#endif
