// Without libFuzzer a target runs the files and folders given as arguments, once each: so every
// build keeps the seeds and what was once found.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "weft/base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

int runs = 0;

void replay(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) replay(entry.path());
    return;
  }
  const std::string bytes = weft::blocking_read_file(path).value();
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  ++runs;
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) replay(arguments[i]);
  std::printf("%d inputs\n", runs);
  return runs > 0 ? 0 : 1;
}
