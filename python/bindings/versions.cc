// Versions beside publishing and pulling: changes in place, offers, diffs.

#include "calls.h"

namespace weft_python {
namespace {

// What a version changes of weights, which it keeps.
class Changes {
 public:
  explicit Changes(weft_changes* changes) : changes_(changes) {}
  ~Changes() { weft_changes_close(changes_); }
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  // The tensor of each change.
  std::vector<std::size_t> tensors() const {
    std::vector<std::size_t> tensors;
    for (std::size_t i = 0; i < weft_changes_count(changes_); ++i) {
      tensors.push_back(weft_changes_tensor(changes_, i));
    }
    return tensors;
  }
  // How many elements, the address of their indices, and of their values.
  std::tuple<std::uint64_t, std::uintptr_t, std::uintptr_t> elements(std::size_t index) {
    weft_change change;
    check_blocking([&] { return weft_changes_at(changes_, index, &change); });
    return {change.count, reinterpret_cast<std::uintptr_t>(change.elements),
            reinterpret_cast<std::uintptr_t>(change.values)};
  }
  // Below, `address` is where all elements of the change's tensor lie.
  void check(std::size_t index, std::uintptr_t address) const {
    check_blocking([&] { return weft_changes_check(changes_, index, memory(address)); });
  }
  void write(std::size_t index, std::uintptr_t address) {
    check_blocking([&] { return weft_changes_write(changes_, index, memory(address)); });
  }
  void undo(std::size_t index, std::uintptr_t address) {
    check_blocking([&] { return weft_changes_undo(changes_, index, memory(address)); });
  }
  void verify(std::uint32_t threads) const {
    check_blocking([&] { return weft_changes_verify(changes_, threads); });
  }
  nb::object apply() {
    const weft_weights* after = nullptr;
    check_blocking([&] { return weft_changes_apply(changes_, &after); });
    return weights_object(after);
  }

 private:
  static void* memory(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

  weft_changes* const changes_;
};

std::pair<nb::object, nb::dict> pull_changes(const Client& client, const std::string& version,
                                             const Weights& base, std::uint32_t threads) {
  weft_pull_options options = {};
  options.struct_size = sizeof(options);
  options.connections = threads;
  weft_pull_report report = {};
  report.struct_size = sizeof(report);
  weft_changes* changes = nullptr;
  check_blocking([&] {
    return weft_pull_changes(client.get(), version.c_str(), base.get(), &options, &changes,
                             &report);
  });
  return {nb::cast(new Changes(changes), nb::rv_policy::take_ownership), report_dict(report)};
}

nb::dict diff_dict(const weft_diff_report& report) {
  nb::dict out;
  out["base_id"] = report.base_id;
  out["id"] = report.id;
  out["total_bytes"] = report.total_bytes;
  out["file_bytes"] = report.file_bytes;
  out["changed_blocks"] = report.changed_blocks;
  return out;
}

// Options and report of a diff and of an apply.
struct DiffCall {
  DiffCall(std::uint32_t threads, nb::object progress) : callbacks(std::move(progress)) {
    options.struct_size = sizeof(options);
    options.threads = threads;
    if (callbacks.has_progress()) options.progress = Callbacks::show_progress;
    options.context = &callbacks;
    report.struct_size = sizeof(report);
  }

  Callbacks callbacks;
  weft_diff_options options = {};
  weft_diff_report report = {};
};

nb::dict diff(const Source& base, const Source& target, const std::string& file,
              std::uint32_t threads, nb::object progress) {
  DiffCall call(threads, std::move(progress));
  const SourceView from(base), to(target);
  check_blocking(
      [&] { return weft_diff(&from.view, &to.view, file.c_str(), &call.options, &call.report); });
  return diff_dict(call.report);
}

// Into the folder, where one is given: then there are no weights.
std::pair<nb::object, nb::dict> apply(const Source& base, const std::string& file,
                                      const std::optional<std::string>& folder,
                                      std::uint32_t threads, nb::object progress) {
  DiffCall call(threads, std::move(progress));
  const SourceView from(base);
  weft_weights* weights = nullptr;
  check_blocking([&] {
    return folder ? weft_apply_folder(&from.view, file.c_str(), folder->c_str(), &call.options,
                                      &call.report)
                  : weft_apply(&from.view, file.c_str(), &call.options, &weights, &call.report);
  });
  return {weights == nullptr ? nb::none() : weights_object(weights), diff_dict(call.report)};
}

// Versions of this process, for others to pull.
class Offer {
 public:
  Offer(const nb::dict& listen, bool small_deltas) : small_deltas_(small_deltas) {
    const ListenOptions how(listen);
    check_blocking([&] { return weft_offer_open(&how.options, &offer_); });
    url_ = weft_offer_url(offer_);
  }
  ~Offer() { close(); }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

  void close() {
    weft_offer* const closing = std::exchange(offer_, nullptr);
    const nb::gil_scoped_release release;
    weft_offer_close(closing);
  }
  const std::string& url() const { return url_; }

  nb::dict publish(const Source& source, const std::optional<std::string>& label, bool delta,
                   nb::object read, nb::object progress) {
    if (offer_ == nullptr) throw nb::value_error("the origin is closed");
    Callbacks callbacks(std::move(progress), std::move(read));
    SourceView what(source);
    if (callbacks.has_read()) what.view.read = Callbacks::read;
    what.view.context = &callbacks;
    weft_offer_options options = {};
    options.struct_size = sizeof(options);
    options.label = text_or_null(label);
    options.no_delta = !delta;
    options.small_delta = small_deltas_;
    if (callbacks.has_progress()) options.progress = Callbacks::show_progress;
    options.context = &callbacks;
    weft_publish_report report = {};
    report.struct_size = sizeof(report);
    check_blocking([&] { return weft_offer_publish(offer_, &what.view, &options, &report); });
    return report_dict(report);
  }

 private:
  const bool small_deltas_;
  weft_offer* offer_ = nullptr;
  std::string url_;
};

}  // namespace

void add_versions(nb::module_& module) {
  nb::class_<Changes>(module, "Changes")
      .def("tensors", &Changes::tensors)
      .def("elements", &Changes::elements, nb::arg("index"))
      .def("check", &Changes::check, nb::arg("index"), nb::arg("address"))
      .def("write", &Changes::write, nb::arg("index"), nb::arg("address"))
      .def("undo", &Changes::undo, nb::arg("index"), nb::arg("address"))
      .def("verify", &Changes::verify, nb::arg("threads") = 0)
      .def("apply", &Changes::apply);
  module.def("pull_changes", &pull_changes, nb::arg("client"), nb::arg("version"), nb::arg("base"),
             nb::arg("threads") = 0);
  nb::class_<Offer>(module, "Offer")
      .def(nb::init<const nb::dict&, bool>(), nb::arg("listen"), nb::arg("small_deltas"))
      .def_prop_ro("url", &Offer::url)
      .def("publish", &Offer::publish, nb::arg("source"), nb::arg("label").none(), nb::arg("delta"),
           nb::arg("read").none() = nb::none(), nb::arg("progress").none() = nb::none())
      .def("close", &Offer::close);
  module.def("diff", &diff, nb::arg("base"), nb::arg("target"), nb::arg("file"),
             nb::arg("threads") = 0, nb::arg("progress").none() = nb::none());
  module.def("apply", &apply, nb::arg("base"), nb::arg("file"), nb::arg("folder").none(),
             nb::arg("threads") = 0, nb::arg("progress").none() = nb::none());
}

}  // namespace weft_python
