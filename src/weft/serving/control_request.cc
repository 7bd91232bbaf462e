#include "weft/serving/control_request.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/serving/api_error.h"
#include "weft/serving/fields.h"

namespace weft {
namespace json = boost::json;
namespace {

// Where the transfer back ends of vLLM keep the packing of their buffers: without meaning here,
// harmless.
constexpr std::array<std::string_view, 3> kIgnoredInfo = {"packed", "packed_buffer_size_bytes",
                                                          "packed_num_buffers"};

Error literal_error(std::string_view place, std::string_view expected, std::string_view input) {
  return validation_error("literal_error", place, fmt::format("Input should be {}", expected),
                          input);
}

// The body as these routes read it: a body that is not called JSON counts as none.
Result<json::value> embedded_body(const http::Request& request) {
  const auto type = request.headers.try_get("Content-Type");
  if (request.body.empty() || !type || type->find("json") == std::string_view::npos)
    return json::value();
  auto value = parse_json(request.body);
  if (value) return *std::move(value);
  return validation_error("json_invalid", "body.json",
                          "JSON decode error: " + value.error().message(), "");
}

// The same, as an object; anything else lacks the field.
Result<json::object> embedded_object(const http::Request& request, std::string_view field) {
  WEFT_TRY(json::value body, embedded_body(request));
  if (!body.is_object()) return missing_field_error(fmt::format("body.{}", field));
  return std::move(body.get_object());
}

Result<PauseMode> parse_mode(const http::Request& request) {
  const std::string_view mode = request.try_query("mode").value_or("abort");
  if (mode == "abort") return PauseMode::kAbort;
  if (mode == "wait") return PauseMode::kWait;
  if (mode == "keep") return PauseMode::kKeep;
  return literal_error("query.mode", "'abort', 'wait' or 'keep'", mode);
}

constexpr std::string_view kHowToSend =
    "weft takes no NCCL, IPC or other process group and no pickles: PUT a .safetensors file to "
    "/weft/v1/weights "
    "or push blocks to /weft/v1/uploads; update_info is then {}, or {\"path\": ...} under "
    "--allow-path, or {\"version\": ..., \"source\": URL} under --allow-source";

Result<void> check_init_info(const json::object& info) {
  for (const auto& [key, value] : info) {
    const std::string_view name(key.data(), key.size());
    if (std::ranges::find(kIgnoredInfo, name) != kIgnoredInfo.end()) continue;
    return validation_error("extra_forbidden", fmt::format("body.init_info.{}", name),
                            fmt::format("init_info is {{}} here. {}", kHowToSend), shown(value));
  }
  return {};
}

Result<UpdateRequest> parse_update_info(const json::object& info) {
  const Fields fields(info, "body.update_info");
  for (const auto& [key, value] : info) {
    const std::string_view name(key.data(), key.size());
    if (std::ranges::find(kIgnoredInfo, name) != kIgnoredInfo.end()) continue;
    if (name == "path" || name == "version" || name == "source") continue;
    return validation_error("extra_forbidden", fields.place_of(name), kHowToSend, shown(value));
  }
  UpdateRequest out;
  WEFT_TRY(out.path, fields.text("path"));
  WEFT_TRY(auto version, fields.text("version"));
  WEFT_TRY(auto source, fields.text("source"));
  if (!version && !source) return out;
  if (!version || !source)
    return missing_field_error(fields.place_of(version ? "source" : "version"));
  if (out.path) {
    return validation_error("extra_forbidden", fields.place_of("path"),
                            "a path or a source, not both", *out.path);
  }
  out.pull = {*std::move(version), *std::move(source)};
  return out;
}

// vLLM takes one element for each worker; here there is one.
Result<UpdateRequest> parse_update_infos(const json::array& list) {
  if (list.size() != 1) {
    return validation_error("list_length", "body.update_info",
                            "a list has one element for each worker, and there is 1", shown(list));
  }
  if (list.front().is_null()) return UpdateRequest();
  if (!list.front().is_object()) {
    return validation_error("dict_type", "body.update_info.0", "Input should be a valid dictionary",
                            shown(list.front()));
  }
  return parse_update_info(list.front().get_object());
}

// These two answer a bad body in their own words.
Result<json::object> plain_object(const http::Request& request) {
  auto body = parse_json(request.body);
  if (!body) return body_error("Invalid JSON format");
  if (!body->is_object()) return body_error("Request body must be a JSON object");
  return std::move(body->get_object());
}

}  // namespace

Result<bool> parse_query_flag(const http::Request& request, std::string_view name, bool otherwise) {
  const auto text = request.try_query(name);
  if (!text) return otherwise;
  return parse_flag(*text, fmt::format("query.{}", name));
}

Result<PauseRequest> parse_pause(const http::Request& request) {
  PauseRequest out;
  WEFT_TRY(out.mode, parse_mode(request));
  WEFT_TRY(out.clear_cache, parse_query_flag(request, "clear_cache", true));
  WEFT_TRY(const bool wait, parse_query_flag(request, "wait_for_inflight_requests", false));
  if (wait) out.mode = PauseMode::kWait;
  return out;
}

Result<SleepRequest> parse_sleep(const http::Request& request) {
  SleepRequest out;
  WEFT_TRY(out.mode, parse_mode(request));
  const std::string_view level = request.try_query("level").value_or("1");
  if (level != "0" && level != "1" && level != "2")
    return literal_error("query.level", "0, 1 or 2", level);
  out.level = level.front() - '0';
  return out;
}

Result<void> parse_init(const http::Request& request) {
  WEFT_TRY(const json::object body, embedded_object(request, "init_info"));
  WEFT_TRY(const json::object* info, Fields(body, "body").try_object("init_info"));
  if (info == nullptr) return missing_field_error("body.init_info");
  return check_init_info(*info);
}

Result<UpdateRequest> parse_update(const http::Request& request) {
  WEFT_TRY(const json::object body, embedded_object(request, "update_info"));
  const Fields fields(body, "body");
  UpdateRequest out;
  const json::value* info = fields.try_find("update_info");
  if (info == nullptr && body.contains("weight_dir")) {
    WEFT_TRY(out.path, fields.text("weight_dir"));
    if (!out.path) return validation_error("string_type", "body.weight_dir", kHowToSend, "None");
    out.whole = true;
    return out;
  }
  if (info == nullptr) return missing_field_error("body.update_info");
  if (info->is_array()) return parse_update_infos(info->get_array());
  if (!info->is_object()) {
    return validation_error("dict_type", "body.update_info",
                            "Input should be a valid dictionary or list", shown(*info));
  }
  return parse_update_info(info->get_object());
}

Result<FinishRequest> parse_finish(const http::Request& request) {
  WEFT_TRY(const json::value body, embedded_body(request));
  FinishRequest out;
  if (body.is_null()) return out;
  if (!body.is_object()) return missing_field_error("body.weight_version");
  const Fields fields(body.get_object(), "body");
  WEFT_TRY(out.label, fields.text("weight_version"));
  WEFT_TRY(out.on_update, parse_on_update(fields));
  return out;
}

Result<std::string> parse_new_version(const http::Request& request) {
  WEFT_TRY(const json::object body, embedded_object(request, "new_version"));
  WEFT_TRY(auto version, Fields(body, "body").text("new_version"));
  if (!version) return missing_field_error("body.new_version");
  return *std::move(version);
}

Result<CheckerRequest> parse_checker(const http::Request& request) {
  WEFT_TRY(const json::object body, embedded_object(request, "action"));
  const Fields fields(body, "body");
  WEFT_TRY(const auto action, fields.text("action"));
  if (!action) return missing_field_error("body.action");
  CheckerRequest out;
  if (*action == "checksum") return out;
  if (*action == "reset") {
    out.action = CheckerRequest::Action::kReset;
    return out;
  }
  if (*action != "compare")
    return literal_error("body.action", "'checksum', 'reset' or 'compare'", *action);
  out.action = CheckerRequest::Action::kCompare;
  WEFT_TRY(const json::object* baseline, fields.try_object("baseline"));
  if (baseline == nullptr) return body_error("action='compare' requires a 'baseline' object");
  const Fields sums(*baseline, "body.baseline");
  for (const auto& [key, value] : *baseline) {
    const std::string name(key.data(), key.size());
    WEFT_TRY(const auto sum, sums.text(name));
    out.baseline[name] = sum.value_or("");
  }
  return out;
}

Result<std::vector<std::string>> parse_abort(const http::Request& request) {
  WEFT_TRY(const json::object body, plain_object(request));
  return Fields(body, "body").texts("request_ids");
}

Result<std::string> parse_collective_rpc(const http::Request& request) {
  auto body = parse_json(request.body);
  if (!body) return body_error("JSON decode error: " + body.error().message());
  const json::object* object = body->if_object();
  const json::value* method = object == nullptr ? nullptr : object->if_contains("method");
  if (method == nullptr || !method->is_string())
    return body_error("Missing 'method' in request body");
  return std::string(method->get_string().data(), method->get_string().size());
}

bool is_allowed_source(std::string_view source, const std::vector<std::string>& prefixes) {
  return std::ranges::any_of(prefixes, [&](const std::string& prefix) {
    if (!source.starts_with(prefix)) return false;
    const std::string_view rest = source.substr(prefix.size());
    return rest.empty() || prefix.ends_with('/') || rest.starts_with('/');
  });
}

}  // namespace weft
