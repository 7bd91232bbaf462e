#include "weft/transfer/internal/answers.h"

#include <array>
#include <charconv>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/format/json.h"
#include "weft/transfer/peer_error.h"

namespace weft::internal {
namespace {

namespace json = boost::json;

json::string text_value(std::string_view text) {
  return json::string(text.data(), text.size());
}

Result<json::object> object_of(const Answer& answer) {
  if (!answer.response) return answer.response.error();
  auto value = parse_json(answer.response->body);
  if (!value || !value->is_object()) {
    return Error(ErrorCode::kCorrupt, "the server's answer is no JSON object");
  }
  return std::move(value->as_object());
}

std::optional<std::uint64_t> try_number(const json::value* value) {
  const bool is_count =
      value != nullptr && (value->is_uint64() || (value->is_int64() && value->get_int64() >= 0));
  if (!is_count) return std::nullopt;
  return value->to_number<std::uint64_t>();
}

Result<std::uint64_t> number(const json::object& object, const char* name) {
  const auto found = try_number(object.if_contains(name));
  if (found) return *found;
  return Error(ErrorCode::kCorrupt, fmt::format("the server's answer has no count `{}`", name));
}

std::optional<std::string> try_text(const json::object& object, const char* name) {
  const json::value* const value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return std::string(value->get_string());
}

Result<std::string> text(const json::object& object, const char* name) {
  auto found = try_text(object, name);
  if (found) return std::move(*found);
  return Error(ErrorCode::kCorrupt, fmt::format("the server's answer has no text `{}`", name));
}

// One [entry, first block, blocks].
std::optional<BlockLedger::Run> try_run(const json::value& value) {
  if (!value.is_array() || value.get_array().size() != 3) return std::nullopt;
  std::array<std::uint64_t, 3> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto found = try_number(&value.get_array()[i]);
    if (!found) return std::nullopt;
    numbers[i] = *found;
  }
  return BlockLedger::Run{numbers[0], numbers[1], numbers[2]};
}

json::array digests_array(const std::vector<Digest>& digests) {
  json::array array;
  for (const Digest& digest : digests) array.push_back(text_value(digest_text(digest)));
  return array;
}

bool has_text(const json::object& object, const char* name, std::string_view wanted) {
  const json::value* const list = object.if_contains(name);
  if (list == nullptr || !list->is_array()) return false;
  for (const json::value& value : list->get_array()) {
    if (value.is_string() && std::string_view(value.get_string()) == wanted) return true;
  }
  return false;
}

}  // namespace

Answer answer_of(Result<http::Response> response) {
  Answer answer{std::move(response), std::nullopt};
  if (!answer.response || answer.response->status < 300) return answer;
  if (const auto after = answer.response->headers.try_get("Retry-After")) {
    std::uint32_t seconds = 0;
    const char* const end = after->data() + after->size();
    if (const auto parsed = std::from_chars(after->data(), end, seconds);
        parsed.ec == std::errc() && parsed.ptr == end) {
      answer.retry_after = std::chrono::seconds(seconds);
    }
  }
  constexpr int kBadGateway = 502;
  Error error = peer_error(*answer.response);
  if (answer.response->status == kBadGateway) {
    error = Error(ErrorCode::kDisconnected, error.message());
  }
  answer.response = std::move(error);
  return answer;
}

std::string skeleton_json(const TensorSource& source, const VersionDigests* digests,
                          const std::string& base, bool partial, bool replace) {
  json::array tensors, files;
  const auto add_blocks = [&](json::object& entry, std::size_t index) {
    if (digests != nullptr) entry["blocks"] = digests_array((*digests)[index]);
  };
  for (const TensorSpec& spec : source.tensors()) {
    json::object entry{{"name", spec.name},
                       {"dtype", text_value(dtype_name(spec.dtype))},
                       {"shape", json::value_from(spec.shape)}};
    add_blocks(entry, tensors.size());
    tensors.push_back(std::move(entry));
  }
  for (const OfferedFile& file : source.files()) {
    json::object entry{{"name", file.name}, {"size", file.size_bytes}};
    add_blocks(entry, tensors.size() + files.size());
    files.push_back(std::move(entry));
  }
  json::object skeleton{{"tensors", std::move(tensors)}, {"replace", replace}};
  if (!files.empty()) skeleton["files"] = std::move(files);
  if (!base.empty()) skeleton["base"] = base;
  if (partial) skeleton["partial"] = true;
  return json::serialize(skeleton);
}

std::string commit_json(const PushOptions& options) {
  json::object commit;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) commit[name] = value;
  };
  add("label", options.label);
  add("head", options.head);
  add("if_match", options.if_match);
  add("parent", options.parent);
  add("origin", options.origin);
  add("on_update", options.on_update);
  return commit.empty() ? "" : json::serialize(commit);
}

Result<OpenAnswer> parse_opened(const Answer& answer) {
  WEFT_TRY(const json::object object, object_of(answer));
  OpenAnswer open;
  WEFT_TRY(open.opened.upload, text(object, "upload"));
  WEFT_TRY(open.opened.verified_bytes, number(object, "verified_bytes"));
  const json::value* const missing = object.if_contains("missing");
  const bool is_list = missing != nullptr && missing->is_array();
  for (std::size_t i = 0; is_list && i < missing->get_array().size(); ++i) {
    if (const auto run = try_run(missing->get_array()[i])) open.opened.missing.push_back(*run);
  }
  if (!is_list || open.opened.missing.size() != missing->get_array().size()) {
    return Error(ErrorCode::kCorrupt, "the server's answer has no list `missing` of blocks");
  }
  open.takes_zstd = has_text(object, "encodings", "zstd");
  open.takes_sparse = has_text(object, "encodings", "sparse");
  open.takes_delta = has_text(object, "encodings", "delta");
  open.patch_mode = try_text(object, "mode") == "patch";
  return open;
}

Result<PushMachine::Counts> parse_counts(const Answer& answer) {
  WEFT_TRY(const json::object object, object_of(answer));
  PushMachine::Counts counts;
  WEFT_TRY(counts.verified, number(object, "verified"));
  WEFT_TRY(counts.repeated, number(object, "repeated"));
  WEFT_TRY(counts.busy, number(object, "busy"));
  return counts;
}

Result<CommitAnswer> parse_committed(const Answer& answer) {
  WEFT_TRY(const json::object object, object_of(answer));
  CommitAnswer commit;
  WEFT_TRY(commit.id, text(object, "id"));
  commit.stall_us = try_number(object.if_contains("stall_us")).value_or(0);
  const json::value* const converted = object.if_contains("converted");
  commit.converted = converted != nullptr && converted->is_bool() && converted->get_bool();
  return commit;
}

Result<std::string> parse_sealed(const Answer& answer) {
  WEFT_TRY(const json::object object, object_of(answer));
  return text(object, "id");
}

std::optional<PushMachine::Serving> parse_serving(const Answer& answer) {
  const auto object = object_of(answer);
  const json::value* const serving = object ? object->if_contains("serving") : nullptr;
  if (serving == nullptr || !serving->is_object()) return std::nullopt;
  auto id = try_text(serving->get_object(), "id");
  if (!id) return std::nullopt;
  return PushMachine::Serving{std::move(*id), try_text(*object, "instance").value_or("")};
}

}  // namespace weft::internal
