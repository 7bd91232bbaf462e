#include "weft/app/versions.h"

#include <ctime>

#include <boost/json.hpp>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "weft/base/wording.h"
#include "weft/format/json.h"
#include "weft/http/message.h"
#include "weft/transfer/puller.h"

namespace weft {
namespace {

namespace json = boost::json;

Result<json::object> blocking_get_object(http::Client& server, const std::string& target) {
  WEFT_TRY(const http::Response response, blocking_call(server, "GET", target));
  auto value = parse_json(response.body);
  if (value && value->is_object()) return std::move(value->as_object());
  return Error(ErrorCode::kCorrupt,
               fmt::format("{}{}: expected a JSON object", server.server().text(), target));
}

// A member of a peer's answer, or what stands for it where it is absent or of another type.
std::int64_t number_of(const json::object& object, const char* name) {
  const json::value* const value = object.if_contains(name);
  if (value == nullptr || !value->is_int64()) return 0;
  return value->get_int64();
}
const json::array& array_of(const json::object& object, const char* name) {
  static const json::array none;
  const json::value* const value = object.if_contains(name);
  return value != nullptr && value->is_array() ? value->get_array() : none;
}

void print_version(const json::object& version, const json::array& heads) {
  const std::string id = string_member(version, "id");
  const std::string state = string_member(version, "state");
  std::vector<std::string> names;
  // What is staged is not what a head points to, though it may have the same content.
  const bool is_staged = state == "staged";
  for (const json::value& head : heads) {
    if (!is_staged && head.is_object() && string_member(head.get_object(), "id") == id) {
      names.push_back("#" + string_member(head.get_object(), "name"));
    }
  }
  for (const json::value& label : array_of(version, "labels")) {
    if (label.is_string()) names.emplace_back(label.get_string());
  }
  constexpr std::int64_t kMillis = 1000;
  const std::time_t created = number_of(version, "created_ms") / kMillis;
  const std::string line = fmt::format(
      "{}  {:8}  {:19}  {:>9}  {}", id, state,
      created == 0 ? "" : fmt::format("{:%F %T}", fmt::gmtime(created)),
      bytes_text(static_cast<std::uint64_t>(number_of(version, "bytes"))), fmt::join(names, " "));
  fmt::print("{}\n", printable(line));
}

Result<void> blocking_list(const VersionsConfig& config) {
  WEFT_TRY(const auto server, make_client(config.url, config.client));
  WEFT_TRY(json::object versions, blocking_get_object(*server, "/weft/v1/versions"));
  WEFT_TRY(const json::object heads, blocking_get_object(*server, "/weft/v1/heads"));
  if (config.client.json) {
    versions["heads"] = array_of(heads, "heads");
    fmt::print("{}\n", json::serialize(versions));
    return {};
  }
  for (const json::value& version : array_of(versions, "versions")) {
    if (version.is_object()) print_version(version.get_object(), array_of(heads, "heads"));
  }
  return {};
}

// If the head moves meanwhile, somebody else wants something else: that is theirs to sort out.
Result<std::string> blocking_move_head(const RollbackConfig& config) {
  WEFT_TRY(const auto server, make_client(config.url, config.client));
  WEFT_TRY(const std::string id, blocking_resolve_version(*server, config.version));
  const std::string target = "/weft/v1/heads/" + http::percent_encode(config.head);
  WEFT_TRY(const http::Response now, blocking_call(*server, "GET", target));
  const std::string etag(now.headers.try_get("ETag").value_or("*"));
  WEFT_TRY(http::Response moved,
           blocking_call(*server, "PUT", target,
                         {{"If-Match", etag}, {"Content-Type", "application/json"}},
                         json::serialize(json::object{{"id", id}})));
  if (!config.client.json) return fmt::format("{}  {}", config.url, id);
  return std::move(moved.body);
}

}  // namespace

int blocking_run_versions(const VersionsConfig& config) {
  const auto listed = blocking_list(config);
  return listed ? 0 : report_error("versions", listed.error(), config.client);
}

int blocking_run_rollback(const RollbackConfig& config) {
  const auto moved = blocking_move_head(config);
  if (!moved) return report_error("rollback", moved.error(), config.client);
  fmt::print("{}\n", *moved);
  return 0;
}

}  // namespace weft
