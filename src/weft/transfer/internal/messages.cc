#include "weft/transfer/internal/messages.h"

#include <algorithm>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/format/json.h"
#include "weft/protocol/block_frame.h"

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

Result<std::vector<Digest>> parse_digests(const json::value& tensor, const std::string& field) {
  std::vector<Digest> digests;
  const json::value* const blocks = member(tensor.get_object(), "blocks");
  if (blocks == nullptr) return digests;
  if (!blocks->is_array()) return bad_field(field, "an array of digests");
  for (const json::value& value : blocks->get_array()) {
    const auto digest = value.is_string() ? try_parse_digest(text_of(value)) : std::nullopt;
    if (!digest) return bad_field(field, "digests, `blake3:` and 64 lower-case hex digits each");
    digests.push_back(*digest);
  }
  return digests;
}

// Equal for equal skeletons: names cannot hold the separators unnoticed, since their lengths stand
// in front.
Digest skeleton_digest(const UploadRequest& request) {
  Hasher hasher;
  const auto text = [&](std::string_view part) { hasher.update(std::as_bytes(std::span(part))); };
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& spec = request.tensors[i];
    text(fmt::format("{} {} {} {} {}\n", spec.name.size(), spec.name, dtype_name(spec.dtype),
                     shape_text(spec.shape), request.blocks[i].size()));
    for (const Digest& digest : request.blocks[i]) hasher.update(digest.bytes);
  }
  return hasher.finish();
}

json::object version_object(const VersionName& version) {
  return {{"id", version.id}, {"label", version.label}, {"converted", version.converted}};
}

}  // namespace

Result<std::string> owner_of(const http::Request& request) {
  const auto session = request.headers.try_get(kSessionHeader);
  if (!session) return std::string(kAnonymousOwner);
  const bool printable = std::ranges::all_of(*session, [](char c) { return c >= ' ' && c <= '~'; });
  if (session->empty() || session->size() > kMaxSessionBytes || !printable) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: expected 1 to {} printable ASCII characters", kSessionHeader,
                             kMaxSessionBytes));
  }
  return std::string(*session);
}

Result<std::optional<std::string>> label_of_query(const http::Request& request) {
  const auto label = request.try_query("label");
  if (!label) return std::optional<std::string>();
  // The parser of strict JSON is the judge of what is UTF-8.
  if (!parse_json(json::serialize(json::value(json::string(label->data(), label->size()))))) {
    return bad_field("query.label", "UTF-8");
  }
  return std::optional(std::string(*label));
}

Result<std::optional<std::string>> parse_commit_request(std::string_view body) {
  if (body.empty()) return std::optional<std::string>();
  WEFT_TRY(const json::object object, parse_object(body));
  const json::value* const label = member(object, "label");
  if (label == nullptr) return std::optional<std::string>();
  if (!label->is_string()) return bad_field("body.label", "a string");
  return std::optional(std::string(text_of(*label)));
}

Result<UploadRequest> parse_upload_request(std::string_view body) {
  WEFT_TRY(const json::object object, parse_object(body));
  const json::value* const tensors = member(object, "tensors");
  if (tensors == nullptr || !tensors->is_array()) return bad_field("body.tensors", "an array");
  UploadRequest request;
  for (const json::value& tensor : tensors->get_array()) {
    const std::string field = fmt::format("body.tensors.{}", request.tensors.size());
    WEFT_TRY(TensorSpec spec, parse_tensor(tensor, field));
    WEFT_TRY(std::vector<Digest> blocks, parse_digests(tensor, field + ".blocks"));
    request.tensors.push_back(std::move(spec));
    request.blocks.push_back(std::move(blocks));
  }
  if (const json::value* const replace = member(object, "replace"); replace != nullptr) {
    if (!replace->is_bool()) return bad_field("body.replace", "true or false");
    request.replace = replace->get_bool();
  }
  request.skeleton = skeleton_digest(request);
  return request;
}

std::string upload_json(const std::string& upload_id, const UploadProgress& progress) {
  json::array missing;
  for (const auto& run : progress.missing) {
    missing.push_back(json::array{run.tensor, run.first_block, run.blocks});
  }
  const auto state = update_state_name(progress.state);
  return json::serialize(json::object{{"upload", upload_id},
                                      {"state", json::string(state.data(), state.size())},
                                      {"block_bytes", kBlockBytes},
                                      {"total_bytes", progress.total_bytes},
                                      {"verified_bytes", progress.verified_bytes},
                                      {"missing", std::move(missing)}});
}

std::string content_json(const Content& content) {
  return json::serialize(json::object{{"id", content.id}, {"converted", content.converted}});
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

std::string status_json(const Status& status, const std::string& upload_id,
                        const VersionName& serving) {
  const auto state = update_state_name(status.state);
  json::object body{{"serving", version_object(serving)},
                    {"state", json::string(state.data(), state.size())}};
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
