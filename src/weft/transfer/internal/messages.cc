#include "weft/transfer/internal/messages.h"

#include <functional>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/checkpoint/model_files.h"
#include "weft/format/json.h"
#include "weft/protocol/label.h"

namespace weft::internal {
namespace {

namespace json = boost::json;

Error bad_field(const std::string& field, std::string_view expected) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("{}: expected {}", field, expected), field);
}

Result<json::object> parse_object(std::string_view body) {
  auto value = parse_json(body);
  if (!value) return std::move(value).error().with_context("body");
  if (!value->is_object()) return bad_field("body", "an object");
  return std::move(value->as_object());
}

const json::value* member(const json::object& object, std::string_view name) {
  const json::value* const value = object.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string_view text_of(const json::value& value) {
  const json::string& text = value.get_string();
  return {text.data(), text.size()};
}

// The text `name`, nothing where it is absent.
Result<std::optional<std::string>> text_member(const json::object& object, std::string_view name,
                                               const std::string& field) {
  const json::value* const value = member(object, name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return bad_field(field, "a string");
  return std::optional(std::string(text_of(*value)));
}

Result<OnUpdate> parse_on_update(std::string_view name, const std::string& field) {
  const auto value = try_parse_on_update(name);
  if (value) return *value;
  return bad_field(field, fmt::format("continue, recompute, finish or abort, not `{}`", name));
}

// The flag `name`, false where it is absent.
Result<bool> flag_member(const json::object& object, const char* name) {
  const json::value* const value = member(object, name);
  if (value == nullptr) return false;
  if (!value->is_bool()) return bad_field(fmt::format("body.{}", name), "true or false");
  return value->get_bool();
}

Result<Shape> parse_shape(const json::value* value, const std::string& field) {
  if (value == nullptr || !value->is_array()) return bad_field(field, "an array of sizes");
  Shape shape;
  for (const json::value& dim : value->get_array()) {
    const bool is_size = dim.is_uint64() || (dim.is_int64() && dim.get_int64() >= 0);
    if (!is_size) return bad_field(field, "an array of sizes");
    shape.push_back(dim.to_number<std::uint64_t>());
  }
  return shape;
}

Result<TensorSpec> parse_tensor(const json::value& value, const std::string& field) {
  if (!value.is_object()) return bad_field(field, "an object");
  const json::object& object = value.get_object();
  const json::value* const name = member(object, "name");
  if (name == nullptr || !name->is_string()) return bad_field(field + ".name", "a string");
  TensorSpec spec;
  spec.name = text_of(*name);
  const json::value* const dtype = member(object, "dtype");
  const std::string_view dtype_text = dtype != nullptr && dtype->is_string() ? text_of(*dtype) : "";
  const auto parsed = try_parse_dtype(dtype_text);
  const auto known = parsed ? parsed : try_parse_torch_dtype(dtype_text);
  if (!known) {
    return bad_field(
        field + ".dtype",
        fmt::format("a dtype of safetensors or torch (`BF16`, `bfloat16`) for {}", spec.name));
  }
  spec.dtype = *known;
  WEFT_TRY(spec.shape, parse_shape(member(object, "shape"), field + ".shape"));
  return spec;
}

Result<std::vector<Digest>> parse_digests(const json::value& entry, const std::string& field) {
  std::vector<Digest> digests;
  const json::value* const blocks = member(entry.get_object(), "blocks");
  if (blocks == nullptr) return digests;
  if (!blocks->is_array()) return bad_field(field, "an array of digests");
  for (const json::value& value : blocks->get_array()) {
    const auto digest = value.is_string() ? try_parse_digest(text_of(value)) : std::nullopt;
    if (!digest) return bad_field(field, "digests, `blake3:` and 64 lower-case hex digits each");
    digests.push_back(*digest);
  }
  return digests;
}

Result<OfferedFile> parse_file(const json::value& value, const std::string& field) {
  if (!value.is_object()) return bad_field(field, "an object");
  OfferedFile file;
  WEFT_TRY(const auto name, text_member(value.get_object(), "name", field + ".name"));
  file.name = name.value_or("");
  // The list is closed: no name is ever written to a disk that means something else there.
  if (!is_model_file(file.name)) {
    return bad_field(
        field + ".name",
        "a file that makes a model (config.json, tokenizer.json, ...: docs/protocol.md)");
  }
  const json::value* const size = member(value.get_object(), "size");
  const bool is_size = size != nullptr && size->is_int64() && size->get_int64() >= 0;
  if (!is_size) return bad_field(field + ".size", "its size in bytes");
  file.size_bytes = static_cast<std::uint64_t>(size->get_int64());
  return file;
}

// Calls `add(value, field)` for each element of the array `name`. Errors: what `add` returns;
// kInvalidArgument when there is no such array.
Result<void> for_each_member(
    const json::object& object, const char* name,
    const std::function<Result<void>(const json::value&, const std::string&)>& add) {
  const json::value* const values = member(object, name);
  const std::string field = fmt::format("body.{}", name);
  if (values == nullptr || !values->is_array()) return bad_field(field, "an array");
  for (std::size_t i = 0; i < values->get_array().size(); ++i) {
    WEFT_TRY_VOID(add(values->get_array()[i], fmt::format("{}.{}", field, i)));
  }
  return {};
}

// Equal for equal skeletons: names cannot hold the separators unnoticed, since their lengths stand
// in front.
Digest skeleton_digest(const UploadOffer& offer) {
  Hasher hasher;
  const auto text = [&](std::string_view part) { hasher.update(std::as_bytes(std::span(part))); };
  const auto entry = [&](std::size_t index, const std::string& name, std::string_view form) {
    text(fmt::format("{} {} {} {}\n", name.size(), name, form, offer.blocks[index].size()));
    for (const Digest& digest : offer.blocks[index]) hasher.update(digest.bytes);
  };
  for (std::size_t i = 0; i < offer.tensors.size(); ++i) {
    const TensorSpec& spec = offer.tensors[i];
    entry(i, spec.name, fmt::format("{} {}", dtype_name(spec.dtype), shape_text(spec.shape)));
  }
  for (std::size_t i = 0; i < offer.files.size(); ++i) {
    entry(offer.tensors.size() + i, offer.files[i].name,
          fmt::format("{}", offer.files[i].size_bytes));
  }
  text(fmt::format("{} {}", offer.base.value_or(""), offer.partial));
  return hasher.finish();
}

json::object version_object(const VersionName& version) {
  return {{"id", version.id}, {"label", version.label}, {"converted", version.converted}};
}

}  // namespace

Result<CommitRequest> parse_commit_query(const http::Request& request) {
  CommitRequest commit;
  if (const auto label = request.try_query("label")) {
    WEFT_TRY_VOID(check_label(*label));
    commit.label = *label;
  }
  if (const auto on_update = request.try_query("on_update")) {
    WEFT_TRY(commit.on_update, parse_on_update(*on_update, "query.on_update"));
  }
  return commit;
}

Result<CommitRequest> parse_commit_request(std::string_view body) {
  CommitRequest request;
  if (body.empty()) return request;
  WEFT_TRY(const json::object object, parse_object(body));
  WEFT_TRY(request.label, text_member(object, "label", "body.label"));
  WEFT_TRY(request.head, text_member(object, "head", "body.head"));
  WEFT_TRY(request.if_match, text_member(object, "if_match", "body.if_match"));
  WEFT_TRY(const auto on_update, text_member(object, "on_update", "body.on_update"));
  if (on_update) {
    WEFT_TRY(request.on_update, parse_on_update(*on_update, "body.on_update"));
  }
  WEFT_TRY(const auto parent, text_member(object, "parent", "body.parent"));
  WEFT_TRY(const auto origin, text_member(object, "origin", "body.origin"));
  request.parent = parent.value_or("");
  request.origin = origin.value_or("");
  return request;
}

Result<UploadOffer> parse_upload_request(std::string_view body) {
  WEFT_TRY(const json::object object, parse_object(body));
  UploadOffer offer;
  const auto add_blocks = [&](const json::value& entry, const std::string& field) -> Result<void> {
    WEFT_TRY(std::vector<Digest> blocks, parse_digests(entry, field + ".blocks"));
    offer.blocks.push_back(std::move(blocks));
    return {};
  };
  WEFT_TRY_VOID(for_each_member(
      object, "tensors", [&](const json::value& value, const std::string& field) -> Result<void> {
        WEFT_TRY(TensorSpec spec, parse_tensor(value, field));
        offer.tensors.push_back(std::move(spec));
        return add_blocks(value, field);
      }));
  if (member(object, "files") != nullptr) {
    WEFT_TRY_VOID(for_each_member(
        object, "files", [&](const json::value& value, const std::string& field) -> Result<void> {
          WEFT_TRY(OfferedFile file, parse_file(value, field));
          offer.files.push_back(std::move(file));
          return add_blocks(value, field);
        }));
  }
  WEFT_TRY(offer.base, text_member(object, "base", "body.base"));
  WEFT_TRY(offer.partial, flag_member(object, "partial"));
  WEFT_TRY(offer.replace, flag_member(object, "replace"));
  if (offer.partial && !offer.base) return bad_field("body.base", "a version, with `partial`");
  offer.skeleton = skeleton_digest(offer);
  return offer;
}

std::string upload_json(const std::string& upload_id, const UploadProgress& progress) {
  json::array missing;
  for (const auto& run : progress.missing) {
    missing.push_back(json::array{run.tensor, run.first_block, run.blocks});
  }
  json::array encodings;
  for (const Encoding encoding : progress.encodings) {
    const auto name = encoding_name(encoding);
    encodings.push_back(json::string(name.data(), name.size()));
  }
  const auto state = update_state_name(progress.state);
  return json::serialize(json::object{{"upload", upload_id},
                                      {"state", json::string(state.data(), state.size())},
                                      {"mode", progress.patch_mode ? "patch" : "set"},
                                      {"encodings", std::move(encodings)},
                                      {"block_bytes", kBlockBytes},
                                      {"total_bytes", progress.total_bytes},
                                      {"verified_bytes", progress.verified_bytes},
                                      {"missing", std::move(missing)}});
}

std::string sealed_json(const SealedVersion& sealed) {
  json::object body{{"id", sealed.id}, {"converted", sealed.converted}};
  if (sealed.predicted_stall_us) body["predicted_stall_us"] = *sealed.predicted_stall_us;
  return json::serialize(body);
}

std::string commit_json(const CommitReport& report) {
  json::object body = version_object(report.version);
  body["tensors"] = report.tensors;
  body["bytes"] = report.bytes;
  body["stall_us"] = report.stall_us;
  return json::serialize(body);
}

std::string version_json(const VersionName& version) {
  return json::serialize(version_object(version));
}

std::string status_json(const UploadHost::Status& status, const std::string& instance,
                        const std::string& upload_id) {
  const auto state = update_state_name(status.state);
  json::object body{{"state", json::string(state.data(), state.size())}, {"instance", instance}};
  if (status.serving) body["serving"] = version_object(*status.serving);
  if (status.state != UpdateState::kIdle) {
    body["owner"] = status.owner;
    body["lease_ms"] = status.lease_left.count();
    if (status.epoch != 0) body["upload"] = upload_id;
  }
  return json::serialize(body);
}

std::string blocks_json(std::uint64_t verified, std::uint64_t repeated, std::uint64_t busy) {
  return json::serialize(
      json::object{{"verified", verified}, {"repeated", repeated}, {"busy", busy}});
}

}  // namespace weft::internal
