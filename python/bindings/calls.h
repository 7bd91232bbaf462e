#pragma once
// What calls of weft.h take and give, as the bindings hold it.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace weft_python {

class Client {
 public:
  Client(const std::string& url, const std::optional<std::string>& key,
         const std::optional<std::string>& ca_file, double connect_timeout_s,
         double idle_timeout_s) {
    constexpr double kMs = 1000;
    weft_client_options options = {};
    options.struct_size = sizeof(options);
    options.key = text_or_null(key);
    options.ca_file = text_or_null(ca_file);
    options.connect_timeout_ms = static_cast<std::uint64_t>(kMs * connect_timeout_s);
    options.idle_timeout_ms = static_cast<std::uint64_t>(kMs * idle_timeout_s);
    check(weft_client_open(url.c_str(), &options, &client_));
  }
  ~Client() { weft_client_close(client_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  weft_client* get() const { return client_; }

 private:
  weft_client* client_ = nullptr;
};

// Python callables that a blocking call, which has let go of the GIL, comes back to. What they
// raise ends the call, and is then raised again.
class Callbacks {
 public:
  explicit Callbacks(nb::object progress, nb::object read = nb::none(),
                     nb::object tensor = nb::none())
      : progress_(std::move(progress)), read_(std::move(read)), tensor_(std::move(tensor)) {}

  bool has_progress() const { return !progress_.is_none(); }
  bool has_read() const { return !read_.is_none(); }
  bool has_tensor() const { return !tensor_.is_none(); }

  static void show_progress(void* context, std::uint64_t done_bytes, std::uint64_t total_bytes) {
    const auto& self = *static_cast<const Callbacks*>(context);
    const nb::gil_scoped_acquire acquire;
    try {
      self.progress_(done_bytes, total_bytes);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("progress");
    }
  }

  // `tensor(name, dtype, shape, address)`
  static void show_tensor(void* context, const weft_tensor* tensor) {
    const auto& self = *static_cast<const Callbacks*>(context);
    const nb::gil_scoped_acquire acquire;
    try {
      const std::vector<std::uint64_t> shape(tensor->shape, tensor->shape + tensor->rank);
      self.tensor_(tensor->name, static_cast<int>(tensor->dtype), nb::tuple(nb::cast(shape)),
                   reinterpret_cast<std::uintptr_t>(tensor->data));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("tensor");
    }
  }

  // `read(tensor, offset_bytes, address, nbytes)` fills the memory at `address`, or returns the
  // address of the bytes.
  static weft_code read(void* context, std::size_t tensor, std::uint64_t offset_bytes, void* buffer,
                        std::size_t size_bytes, const void** view) {
    const auto& self = *static_cast<const Callbacks*>(context);
    return answer_call([&] {
      const nb::object place =
          self.read_(tensor, offset_bytes, reinterpret_cast<std::uintptr_t>(buffer), size_bytes);
      if (!place.is_none()) *view = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(place));
    });
  }

 private:
  nb::object progress_, read_, tensor_;
};

// What is published, or what is there already.
struct Source {
  std::optional<std::string> path;
  std::vector<TensorRow> rows;
  Files files;
};

// A source as weft.h takes it. Needs the Source while it lives.
struct SourceView {
  explicit SourceView(const Source& source)
      : tensors(tensors_of(source.rows)), files(files_of(source.files)) {
    view.struct_size = sizeof(view);
    view.path = text_or_null(source.path);
    view.tensors = tensors.data();
    view.tensor_count = tensors.size();
    view.files = files.data();
    view.file_count = files.size();
  }

  std::vector<weft_tensor> tensors;
  std::vector<weft_file> files;
  weft_source view = {};
};

// How to listen, by name: what weft/_servers.py gives.
class ListenOptions {
 public:
  explicit ListenOptions(const nb::dict& given) {
    for (const auto& [name, value] : given) {
      if (!value.is_none() && nb::isinstance<nb::str>(value))
        texts_.emplace(nb::cast<std::string>(name), nb::cast<std::string>(value));
    }
    options.struct_size = sizeof(options);
    options.host = text("host");
    options.port = nb::cast<std::uint16_t>(given["port"]);
    options.insecure = nb::cast<bool>(given["insecure"]);
    options.admin_key = text("admin_key");
    options.read_key = text("read_key");
    options.tls_cert = text("tls_cert");
    options.tls_key = text("tls_key");
  }

  weft_listen_options options = {};

 private:
  const char* text(const char* name) const {
    const auto found = texts_.find(name);
    return found == texts_.end() ? nullptr : found->second.c_str();
  }

  std::map<std::string, std::string> texts_;
};

nb::dict report_dict(const weft_publish_report& report);
nb::dict report_dict(const weft_pull_report& report);

}  // namespace weft_python
