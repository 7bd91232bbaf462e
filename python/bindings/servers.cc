// Receivers and stores in this process.

#include "calls.h"

namespace weft_python {

namespace {

class Receiver {
 public:
  Receiver(const std::vector<TensorRow>& rows, const nb::dict& listen, nb::object take,
           const Files& files, double lease_s, bool tied_embeddings)
      : take_(std::move(take)) {
    const std::vector<weft_tensor> tensors = tensors_of(rows);
    const std::vector<weft_file> given = files_of(files);
    const ListenOptions how(listen);
    constexpr double kMs = 1000;
    weft_receiver_options options = {};
    options.struct_size = sizeof(options);
    options.listen = &how.options;
    options.take = &Receiver::take;
    options.context = this;
    options.files = given.data();
    options.file_count = given.size();
    options.lease_ms = static_cast<std::uint64_t>(kMs * lease_s);
    options.tied_embeddings = tied_embeddings;
    check_blocking(
        [&] { return weft_receiver_open(tensors.data(), tensors.size(), &options, &receiver_); });
  }
  ~Receiver() { close(); }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // Handing over needs the GIL, and ends before this does.
  void close() {
    weft_receiver* const closing = std::exchange(receiver_, nullptr);
    const nb::gil_scoped_release release;
    weft_receiver_close(closing);
  }
  weft_receiver* get() const {
    if (receiver_ == nullptr) throw nb::value_error("the receiver is closed");
    return receiver_;
  }

 private:
  static weft_code take(void* context, const weft_weights* weights) {
    const auto& self = *static_cast<const Receiver*>(context);
    return answer_call([&] { self.take_(weights_object(weft_weights_retain(weights))); });
  }

  nb::object take_;
  weft_receiver* receiver_ = nullptr;
};

class Store {
 public:
  Store(const std::string& folder, const nb::dict& listen, std::uint64_t keep_last) {
    const ListenOptions how(listen);
    weft_store_options options = {};
    options.struct_size = sizeof(options);
    options.listen = &how.options;
    options.keep_last = keep_last;
    check_blocking([&] { return weft_store_open(folder.c_str(), &options, &store_); });
    url_ = weft_store_url(store_);
  }
  ~Store() { close(); }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void close() {
    weft_store* const closing = std::exchange(store_, nullptr);
    const nb::gil_scoped_release release;
    weft_store_close(closing);
  }
  const std::string& url() const { return url_; }

 private:
  weft_store* store_ = nullptr;
  std::string url_;
};

}  // namespace

void add_servers(nb::module_& module) {
  nb::class_<Receiver>(module, "Receiver")
      .def(nb::init<const std::vector<TensorRow>&, const nb::dict&, nb::object, const Files&,
                    double, bool>(),
           nb::arg("rows"), nb::arg("listen"), nb::arg("take"), nb::arg("files"), nb::arg("lease"),
           nb::arg("tied_embeddings"))
      .def_prop_ro("url", [](const Receiver& self) { return weft_receiver_url(self.get()); })
      .def("current",
           [](const Receiver& self) { return weights_object(weft_receiver_current(self.get())); })
      .def("pull",
           [](const Receiver& self, const Client& client, const std::string& version) {
             weft_receiver* const receiver = self.get();
             check_blocking(
                 [&] { return weft_receiver_pull(receiver, client.get(), version.c_str()); });
           })
      .def("close", &Receiver::close);
  nb::class_<Store>(module, "Store")
      .def(nb::init<const std::string&, const nb::dict&, std::uint64_t>(), nb::arg("folder"),
           nb::arg("listen"), nb::arg("keep_last"))
      .def_prop_ro("url", &Store::url)
      .def("close", &Store::close);
}

}  // namespace weft_python
