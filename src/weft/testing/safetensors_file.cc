#include "weft/testing/safetensors_file.h"

#include "weft/base/file.h"
#include "weft/format/safetensors.h"

namespace weft {

TestTensor filled_tensor(std::string name, DType dtype, Shape shape, std::byte fill) {
  TestTensor tensor{{std::move(name), dtype, std::move(shape)}, {}};
  tensor.data.assign(tensor_size_bytes(tensor.spec).value(), fill);
  return tensor;
}

std::string safetensors_bytes(const std::vector<TestTensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TestTensor& tensor : tensors) specs.push_back(tensor.spec);
  std::string bytes = make_safetensors_header(specs, {}).value();
  for (const TestTensor& tensor : tensors) {
    for (const std::byte byte : tensor.data) bytes += static_cast<char>(byte);
  }
  return bytes;
}

void blocking_write_safetensors(const std::filesystem::path& path,
                                const std::vector<TestTensor>& tensors) {
  blocking_write_file(path, safetensors_bytes(tensors)).value();
}

}  // namespace weft
