#pragma once
// What the parts of the module `weft._weft` share: the C interface of weft.h for Python, no more.
// The package's Python files give it its face.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <weft/weft.h>

namespace weft_python {

namespace nb = nanobind;

// A call of weft.h failed. Becomes the exception that weft._errors makes of code and message.
class Failure : public std::exception {
 public:
  explicit Failure(weft_code code) : code_(code), message_(weft_error_message()) {}

  weft_code code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  weft_code code_;
  std::string message_;
};

inline void check(weft_code code) {
  if (code != WEFT_OK) throw Failure(code);
}

// Runs a call that blocks, without the GIL.
template <typename Call>
void check_blocking(Call call) {
  weft_code code = WEFT_OK;
  std::string message;
  {
    const nb::gil_scoped_release release;
    code = call();
  }
  check(code);
}

inline const char* text_or_null(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

// The exception that is being handled in Python as a code and words for weft.h. With the GIL.
weft_code pass_on(nb::python_error& error);

// Runs a callback of weft.h, with the GIL, and answers as that wants it. Nothing is thrown.
template <typename Call>
weft_code answer_call(Call&& call) {
  const nb::gil_scoped_acquire acquire;
  try {
    call();
    return WEFT_OK;
  } catch (nb::python_error& error) {
    return pass_on(error);
  } catch (const std::exception& thrown) {
    weft_set_error_message(thrown.what());
    return WEFT_INTERNAL;
  }
}

// A tensor as the package describes it: (name, dtype, shape, address, bytes). Address 0: it is read
// by a callback.
using TensorRow =
    std::tuple<std::string, int, std::vector<std::uint64_t>, std::uintptr_t, std::uint64_t>;
using Files = std::map<std::string, nb::bytes>;

// The rows as weft.h takes them. Needs the rows while it lives.
std::vector<weft_tensor> tensors_of(const std::vector<TensorRow>& rows);
std::vector<weft_file> files_of(const Files& files);

// Keeps weights as long as Python does.
class Weights {
 public:
  explicit Weights(const weft_weights* held) : held_(held) {}
  ~Weights() { weft_weights_release(held_); }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  const weft_weights* get() const { return held_; }

 private:
  const weft_weights* const held_;
};
nb::object weights_object(const weft_weights* held);

void add_client(nb::module_& module);
void add_servers(nb::module_& module);
void add_sources(nb::module_& module);
void add_tensors(nb::module_& module);
void add_versions(nb::module_& module);

}  // namespace weft_python
