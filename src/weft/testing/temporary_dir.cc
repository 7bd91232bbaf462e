#include "weft/testing/temporary_dir.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "weft/base/check.h"

namespace weft {
namespace {

std::filesystem::path directory_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : std::filesystem::current_path();
}

}  // namespace

TemporaryDir::TemporaryDir() {
  std::string pattern = std::filesystem::temp_directory_path() / "weft_XXXXXX";
  WEFT_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryDir::~TemporaryDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path source_dir() {
  return directory_of("WEFT_SOURCE_DIR");
}
std::filesystem::path binary_dir() {
  return directory_of("WEFT_BINARY_DIR");
}

}  // namespace weft
