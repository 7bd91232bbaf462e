// Publishing and pulling.

#include "calls.h"

namespace weft_python {
namespace {

// The options of a publish, by name: what weft/_publisher.py gives.
class PublishOptions {
 public:
  explicit PublishOptions(const nb::dict& given) : given_(given) {
    options.struct_size = sizeof(options);
    options.label = text("label");
    options.session = text("session");
    options.head = text("head");
    options.if_match = text("if_match");
    options.parent = text("parent");
    options.origin = text("origin");
    options.on_update = text("on_update");
    options.base_id = text("base_id");
    options.connections = number<std::uint32_t>("connections");
    options.retries = number<std::int32_t>("retries");
    options.announce = static_cast<weft_announce>(number<int>("announce"));
    options.stage_only = number<bool>("stage_only");
    options.zstd = number<bool>("zstd");
    options.partial = number<bool>("partial");
  }

  weft_publish_options options = {};

 private:
  const char* text(const char* name) {
    if (!given_.contains(name) || given_[name].is_none()) return nullptr;
    return texts_.emplace(name, nb::cast<std::string>(given_[name])).first->second.c_str();
  }
  template <typename T>
  T number(const char* name) {
    return given_.contains(name) ? nb::cast<T>(given_[name]) : T{};
  }

  const nb::dict& given_;
  std::map<std::string, std::string> texts_;
};

nb::dict publish(const Client& client, const Source& source, const nb::dict& options,
                 nb::object read, bool costly, const std::optional<Source>& base,
                 nb::object progress) {
  Callbacks callbacks(std::move(progress), std::move(read));
  SourceView what(source);
  if (callbacks.has_read()) what.view.read = Callbacks::read;
  what.view.context = &callbacks;
  what.view.costly = costly;
  PublishOptions how(options);
  std::optional<SourceView> before;
  if (base) {
    before.emplace(*base);
    how.options.base = &before->view;
  }
  if (callbacks.has_progress()) how.options.progress = Callbacks::show_progress;
  how.options.context = &callbacks;
  weft_publish_report report = {};
  report.struct_size = sizeof(report);
  check_blocking([&] { return weft_publish(client.get(), &what.view, &how.options, &report); });
  return report_dict(report);
}

// Into the folder, where one is given: then there are no weights.
std::pair<nb::object, nb::dict> pull(const Client& client, const std::string& version,
                                     const std::optional<std::string>& folder,
                                     std::uint32_t connections, std::int32_t retries,
                                     const std::vector<const Client*>& mirrors,
                                     const std::optional<Source>& base, nb::object progress,
                                     const Weights* base_weights, const Weights* reuse,
                                     nb::object tensor) {
  Callbacks callbacks(std::move(progress), nb::none(), std::move(tensor));
  weft_pull_options options = {};
  options.struct_size = sizeof(options);
  options.connections = connections;
  options.retries = retries;
  std::vector<weft_client*> others;
  for (const Client* mirror : mirrors) others.push_back(mirror->get());
  options.mirrors = others.data();
  options.mirror_count = others.size();
  std::optional<SourceView> at_hand;
  if (base) {
    at_hand.emplace(*base);
    options.base = &at_hand->view;
  }
  if (base_weights != nullptr) options.base_weights = base_weights->get();
  if (reuse != nullptr) options.reuse = reuse->get();
  if (callbacks.has_progress()) options.progress = Callbacks::show_progress;
  if (callbacks.has_tensor()) options.tensor = Callbacks::show_tensor;
  options.context = &callbacks;
  weft_pull_report report = {};
  report.struct_size = sizeof(report);
  weft_weights* weights = nullptr;
  check_blocking([&] {
    return folder
               ? weft_pull_folder(client.get(), version.c_str(), folder->c_str(), &options, &report)
               : weft_pull(client.get(), version.c_str(), &options, &weights, &report);
  });
  return {weights == nullptr ? nb::none() : weights_object(weights), report_dict(report)};
}

}  // namespace

nb::dict report_dict(const weft_publish_report& report) {
  nb::dict out;
  out["id"] = report.id;
  out["resumed"] = report.resumed;
  out["converted"] = report.converted;
  out["total_bytes"] = report.total_bytes;
  out["sent_bytes"] = report.sent_bytes;
  out["skipped_bytes"] = report.skipped_bytes;
  out["delta_bytes"] = report.delta_bytes;
  out["hash_seconds"] = report.hash_seconds;
  out["send_seconds"] = report.send_seconds;
  out["commit_seconds"] = report.commit_seconds;
  out["total_seconds"] = report.total_seconds;
  out["stall_us"] = report.stall_us;
  return out;
}

nb::dict report_dict(const weft_pull_report& report) {
  nb::dict out;
  out["id"] = report.id;
  out["total_bytes"] = report.total_bytes;
  out["fetched_bytes"] = report.fetched_bytes;
  out["held_bytes"] = report.held_bytes;
  out["resumed"] = report.resumed;
  out["corrupt_blocks"] = report.corrupt_blocks;
  out["seconds"] = report.seconds;
  out["deltas"] = report.deltas;
  return out;
}

void add_sources(nb::module_& module) {
  nb::class_<Source>(module, "Source")
      .def(
          "__init__",
          [](Source* self, std::optional<std::string> path, std::vector<TensorRow> rows,
             Files files) {
            new (self) Source{std::move(path), std::move(rows), std::move(files)};
          },
          nb::arg("path").none(), nb::arg("rows"), nb::arg("files"));
}

void add_client(nb::module_& module) {
  nb::class_<Client>(module, "Client")
      .def(nb::init<const std::string&, const std::optional<std::string>&,
                    const std::optional<std::string>&, double, double>(),
           nb::arg("url"), nb::arg("key").none() = nb::none(),
           nb::arg("ca_file").none() = nb::none(), nb::arg("connect_timeout") = 0.0,
           nb::arg("idle_timeout") = 0.0)
      .def("cancel", [](const Client& self) { weft_client_cancel(self.get()); })
      .def("resolve",
           [](const Client& self, const std::string& version) {
             char id[WEFT_ID_SIZE] = {};
             check_blocking([&] { return weft_resolve(self.get(), version.c_str(), id); });
             return std::string(id);
           })
      .def("publish", &publish, nb::arg("source"), nb::arg("options"),
           nb::arg("read").none() = nb::none(), nb::arg("costly") = false,
           nb::arg("base").none() = nb::none(), nb::arg("progress").none() = nb::none())
      .def("pull", &pull, nb::arg("version"), nb::arg("folder").none() = nb::none(),
           nb::arg("connections") = 0, nb::arg("retries") = 0,
           nb::arg("mirrors") = std::vector<const Client*>(), nb::arg("base").none() = nb::none(),
           nb::arg("progress").none() = nb::none(), nb::arg("base_weights").none() = nb::none(),
           nb::arg("reuse").none() = nb::none(), nb::arg("tensor").none() = nb::none());
}

}  // namespace weft_python
