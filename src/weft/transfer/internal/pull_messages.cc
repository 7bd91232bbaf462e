#include "weft/transfer/internal/pull_messages.h"

#include <charconv>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/format/json.h"
#include "weft/http/representation.h"

namespace weft::internal {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMaxWaitSeconds = 300;

http::Response object_response(const json::object& body) {
  return fresh(http::json_response(json::serialize(body)));
}

json::object record_object(const VersionRecord& record) {
  return {{"id", record.id},
          {"labels", json::array(record.labels.begin(), record.labels.end())},
          {"parent", record.parent},
          {"created_ms", record.created_ms},
          {"origin", record.origin},
          {"converted", record.converted},
          {"tensors", record.tensors},
          {"bytes", record.bytes},
          {"state", record.state},
          {"pinned", record.pinned}};
}

}  // namespace

http::Response fresh(http::Response response) {
  response.headers.set("Cache-Control", "no-store");
  return response;
}

http::Response refusal(const Error& error) {
  return fresh(http::error_response(error));
}

http::Response head_conflict(const Error& error, std::string_view current_id) {
  http::Response response = refusal(error);
  json::value body = json::parse(response.body);
  body.as_object()["current"] = json::string(current_id.data(), current_id.size());
  response.body = json::serialize(body);
  return response;
}

http::Response heads_response(std::span<const Head> heads) {
  json::array array;
  for (const Head& head : heads) array.push_back({{"name", head.name}, {"id", head.id}});
  return object_response({{"heads", std::move(array)}});
}

http::Response head_response(const Head& head, std::string_view label) {
  http::Response response = object_response(
      {{"name", head.name}, {"id", head.id}, {"label", json::string(label.data(), label.size())}});
  response.headers.add("ETag", http::etag_of(head.id));
  return response;
}

http::Response record_response(const VersionRecord& record) {
  return object_response(record_object(record));
}

http::Response records_response(std::span<const VersionRecord> records) {
  json::array array;
  for (const VersionRecord& record : records) array.push_back(record_object(record));
  return object_response({{"versions", std::move(array)}});
}

Result<std::chrono::seconds> wait_of(const http::Request& request) {
  const auto text = request.try_query("wait");
  if (!text) return std::chrono::seconds(0);
  std::int64_t seconds = 0;
  const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  if (failed == std::errc() && end == text->data() + text->size() && seconds >= 0 &&
      seconds <= kMaxWaitSeconds) {
    return std::chrono::seconds(seconds);
  }
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("wait: expected 0 to {} seconds, not `{}`", kMaxWaitSeconds, *text),
               "wait");
}

Result<std::string> parse_target(std::string_view body) {
  auto value = parse_json(body);
  if (!value) return std::move(value).error().with_context("body");
  const json::object* const object = value->if_object();
  const json::value* const id = object == nullptr ? nullptr : object->if_contains("id");
  if (id == nullptr || !id->is_string()) {
    return Error(ErrorCode::kInvalidArgument, R"(body: expected {"id": "blake3:..."})", "id");
  }
  return std::string(id->get_string());
}

}  // namespace weft::internal
