#include "bindings.h"

namespace weft_python {
namespace {

// weft._errors: (code, message) -> exception, and exception -> (code, message).
nb::object& error_factory() {
  static nb::object* const factory = new nb::object();  // outlives the interpreter's end
  return *factory;
}
nb::object& error_describer() {
  static nb::object* const describer = new nb::object();
  return *describer;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Failure& failure) {
    const nb::object exception =
        error_factory()(static_cast<int>(failure.code()), nb::str(failure.what()));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  }
}

}  // namespace

weft_code pass_on(nb::python_error& error) {
  auto code = WEFT_INTERNAL;
  try {
    const nb::object described = error_describer()(nb::handle(error.value()));
    code = static_cast<weft_code>(nb::cast<int>(described[0]));
    weft_set_error_message(nb::cast<std::string>(described[1]).c_str());
  } catch (const std::exception& thrown) {
    weft_set_error_message(thrown.what());
  }
  return code;
}

NB_MODULE(_weft, module) {
  module.doc() = "The C interface of weft.h for Python. Private: use the package weft.";
  nb::register_exception_translator(translate);
  module.def(
      "set_errors",
      [](nb::object make, nb::object describe) {
        error_factory() = std::move(make);
        error_describer() = std::move(describe);
      },
      nb::arg("make"), nb::arg("describe"));
  module.def("version", &weft_version);
  module.def("code_name", [](int code) { return weft_code_name(static_cast<weft_code>(code)); });
  module.def("set_log_level",
             [](int level) { weft_set_log_level(static_cast<weft_log_level>(level)); });
  add_tensors(module);
  add_sources(module);
  add_client(module);
  add_versions(module);
  add_servers(module);
}

}  // namespace weft_python
