// Weights that Python holds, tensors that come in by DLPack or the buffer protocol, and host
// memory.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "bindings.h"

namespace weft_python {
namespace {

using nb::dlpack::dtype_code;

struct Kind {
  weft_dtype dtype;
  dtype_code code;
  std::uint8_t bits;
};
constexpr std::array kKinds = {
    Kind{WEFT_BOOL, dtype_code::Bool, 8},
    Kind{WEFT_U8, dtype_code::UInt, 8},
    Kind{WEFT_I8, dtype_code::Int, 8},
    Kind{WEFT_F8_E5M2, dtype_code::Float8_E5M2, 8},
    Kind{WEFT_F8_E4M3, dtype_code::Float8_E4M3FN, 8},
    Kind{WEFT_I16, dtype_code::Int, 16},
    Kind{WEFT_U16, dtype_code::UInt, 16},
    Kind{WEFT_F16, dtype_code::Float, 16},
    Kind{WEFT_BF16, dtype_code::Bfloat, 16},
    Kind{WEFT_I32, dtype_code::Int, 32},
    Kind{WEFT_U32, dtype_code::UInt, 32},
    Kind{WEFT_F32, dtype_code::Float, 32},
    Kind{WEFT_F64, dtype_code::Float, 64},
    Kind{WEFT_I64, dtype_code::Int, 64},
    Kind{WEFT_U64, dtype_code::UInt, 64},
};

nb::dlpack::dtype dlpack_dtype(weft_dtype dtype) {
  const Kind& kind = kKinds.at(static_cast<std::size_t>(dtype));
  return {static_cast<std::uint8_t>(kind.code), kind.bits, 1};
}

// A tensor on this machine whose bytes someone else keeps.
class View {
 public:
  explicit View(nb::ndarray<nb::ro> array) : array_(std::move(array)) {}

  int dtype() const {
    const nb::dlpack::dtype given = array_.dtype();
    for (const Kind& kind : kKinds) {
      if (static_cast<std::uint8_t>(kind.code) == given.code && kind.bits == given.bits &&
          given.lanes == 1)
        return kind.dtype;
    }
    return -1;
  }
  std::vector<std::uint64_t> shape() const {
    std::vector<std::uint64_t> shape;
    for (std::size_t i = 0; i < array_.ndim(); ++i) shape.push_back(array_.shape(i));
    return shape;
  }
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(array_.data()); }
  std::size_t size_bytes() const { return array_.nbytes(); }
  bool is_on_host() const { return array_.device_type() == nb::device::cpu::value; }

  bool is_contiguous() const {
    std::int64_t expected = 1;
    for (std::size_t i = array_.ndim(); i-- > 0;) {
      if (array_.shape(i) != 1 && array_.stride(i) != expected) return false;
      expected *= static_cast<std::int64_t>(array_.shape(i));
    }
    return true;
  }

  // The elements in C order.
  nb::bytearray packed() const {
    nb::bytearray out(nullptr, 0);
    out.resize(array_.nbytes());
    auto* to = static_cast<std::byte*>(out.data());
    if (array_.size() > 0) pack(0, static_cast<const std::byte*>(array_.data()), to);
    return out;
  }

 private:
  void pack(std::size_t axis, const std::byte* from, std::byte*& to) const {
    const std::size_t element_bytes = array_.itemsize();
    if (axis == array_.ndim()) {
      std::memcpy(to, from, element_bytes);
      to += element_bytes;
      return;
    }
    const auto step = array_.stride(axis) * static_cast<std::int64_t>(element_bytes);
    for (std::size_t i = 0; i < array_.shape(axis); ++i)
      pack(axis + 1, from + static_cast<std::int64_t>(i) * step, to);
  }

  nb::ndarray<nb::ro> array_;
};

// Memory of the host, aligned to a page, that Python keeps.
class Arena {
 public:
  explicit Arena(std::size_t size_bytes) : bytes_(allocate(size_bytes)), size_bytes_(size_bytes) {}

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(bytes_.get()); }
  std::size_t size_bytes() const { return size_bytes_; }
  void copy_in(std::size_t offset_bytes, std::uintptr_t from, std::size_t size_bytes) {
    if (offset_bytes > size_bytes_ || size_bytes > size_bytes_ - offset_bytes)
      throw std::out_of_range("more than the arena has room for");
    const nb::gil_scoped_release release;
    std::memcpy(bytes_.get() + offset_bytes, reinterpret_cast<const void*>(from), size_bytes);
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  static std::byte* allocate(std::size_t size_bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t rounded = (size_bytes / kPage + 1) * kPage;
    auto* const bytes = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
    if (bytes == nullptr) throw std::bad_alloc();
    return bytes;
  }

  const std::unique_ptr<std::byte, Free> bytes_;
  const std::size_t size_bytes_;
};

weft_tensor tensor_at(const Weights& weights, std::size_t index) {
  weft_tensor tensor;
  check(weft_weights_tensor(weights.get(), index, &tensor));
  return tensor;
}

// Has __dlpack__ and the buffer protocol; keeps the weights, and copies nothing.
using Array = nb::ndarray<nb::ro, nb::array_api>;
Array array_of(nb::handle self, const weft_tensor& tensor, bool as_bytes) {
  if (as_bytes) {
    const std::array<std::size_t, 1> shape = {static_cast<std::size_t>(tensor.size_bytes)};
    return {tensor.data, 1, shape.data(), self, nullptr, dlpack_dtype(WEFT_U8)};
  }
  const std::vector<std::size_t> shape(tensor.shape, tensor.shape + tensor.rank);
  return {tensor.data, shape.size(), shape.data(), self, nullptr, dlpack_dtype(tensor.dtype)};
}

void add_weights(nb::module_& module) {
  nb::class_<Weights>(module, "Weights")
      .def_prop_ro("id", [](const Weights& self) { return weft_weights_id(self.get()); })
      .def_prop_ro("label", [](const Weights& self) { return weft_weights_label(self.get()); })
      .def("tensors",  // [(name, dtype, shape, bytes)]
           [](const Weights& self) {
             nb::list rows;
             for (std::size_t i = 0; i < weft_weights_tensor_count(self.get()); ++i) {
               const weft_tensor tensor = tensor_at(self, i);
               const std::vector<std::uint64_t> shape(tensor.shape, tensor.shape + tensor.rank);
               rows.append(nb::make_tuple(tensor.name, static_cast<int>(tensor.dtype),
                                          nb::tuple(nb::cast(shape)), tensor.size_bytes));
             }
             return rows;
           })
      .def(
          "array",
          [](nb::handle_t<Weights> self, std::size_t index, bool as_bytes) {
            const auto& weights = nb::cast<const Weights&>(self);
            return array_of(self, tensor_at(weights, index), as_bytes);
          },
          nb::arg("index"), nb::arg("as_bytes") = false)
      .def("address",
           [](const Weights& self, std::size_t index) {
             return reinterpret_cast<std::uintptr_t>(tensor_at(self, index).data);
           })
      .def("files", [](const Weights& self) {
        Files files;
        for (std::size_t i = 0; i < weft_weights_file_count(self.get()); ++i) {
          weft_file file;
          check(weft_weights_file(self.get(), i, &file));
          files.emplace(file.name, nb::bytes(file.data, static_cast<std::size_t>(file.size_bytes)));
        }
        return files;
      });
}

}  // namespace

std::vector<weft_tensor> tensors_of(const std::vector<TensorRow>& rows) {
  std::vector<weft_tensor> tensors;
  for (const auto& [name, dtype, shape, address, size_bytes] : rows) {
    tensors.push_back({name.c_str(), static_cast<weft_dtype>(dtype),
                       static_cast<std::uint32_t>(shape.size()), shape.data(),
                       reinterpret_cast<const void*>(address), size_bytes});
  }
  return tensors;
}

std::vector<weft_file> files_of(const Files& files) {
  std::vector<weft_file> out;
  for (const auto& [name, bytes] : files) out.push_back({name.c_str(), bytes.data(), bytes.size()});
  return out;
}

nb::object weights_object(const weft_weights* held) {
  return nb::cast(new Weights(held), nb::rv_policy::take_ownership);
}

void add_tensors(nb::module_& module) {
  add_weights(module);
  nb::class_<View>(module, "View")
      .def(nb::init<nb::ndarray<nb::ro>>())
      .def_prop_ro("dtype", &View::dtype)
      .def_prop_ro("shape", [](const View& self) { return nb::tuple(nb::cast(self.shape())); })
      .def_prop_ro("address", &View::address)
      .def_prop_ro("nbytes", &View::size_bytes)
      .def_prop_ro("is_on_host", &View::is_on_host)
      .def_prop_ro("is_contiguous", &View::is_contiguous)
      .def("packed", &View::packed);
  nb::class_<Arena>(module, "Arena")
      .def(nb::init<std::size_t>())
      .def_prop_ro("address", &Arena::address)
      .def_prop_ro("nbytes", &Arena::size_bytes)
      .def("copy_in", &Arena::copy_in, nb::arg("offset_bytes"), nb::arg("address"),
           nb::arg("nbytes"));
  module.def(
      "copy",
      [](std::uintptr_t to, std::uintptr_t from, std::size_t size_bytes) {
        const nb::gil_scoped_release release;
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size_bytes);
      },
      nb::arg("to"), nb::arg("address"), nb::arg("nbytes"));
  nb::dict dtypes;  // torch's name -> (number, bytes of an element)
  for (const Kind& kind : kKinds) {
    dtypes[weft_dtype_name(kind.dtype)] =
        nb::make_tuple(static_cast<int>(kind.dtype), weft_dtype_size(kind.dtype));
  }
  module.attr("DTYPES") = dtypes;
}

}  // namespace weft_python
