#pragma once
// Small safetensors files for tests.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

struct TestTensor {
  TensorSpec spec;
  std::vector<std::byte> data;
};

// A tensor whose bytes are all `fill`.
TestTensor filled_tensor(std::string name, DType dtype, Shape shape, std::byte fill);
// A whole safetensors file of these tensors. Aborts on what is no file: a name given twice, say.
std::string safetensors_bytes(const std::vector<TestTensor>& tensors);
// Writes it. Blocks. Aborts if it cannot.
void blocking_write_safetensors(const std::filesystem::path& path,
                                const std::vector<TestTensor>& tensors);

}  // namespace weft
