#include "weft/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft::internal {

void check_failed(const char* expression, std::string_view detail, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s %.*s\n", file, line, expression,
               static_cast<int>(detail.size()), detail.data());
  std::abort();
}

}  // namespace weft::internal
