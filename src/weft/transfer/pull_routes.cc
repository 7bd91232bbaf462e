#include "weft/transfer/pull_routes.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "weft/http/representation.h"
#include "weft/transfer/internal/delta_routes.h"
#include "weft/transfer/internal/messages.h"
#include "weft/transfer/internal/polls.h"
#include "weft/transfer/internal/pull_data.h"
#include "weft/transfer/internal/pull_messages.h"
#include "weft/transfer/upload_routes.h"

namespace weft {
namespace {

using ExchangePtr = std::shared_ptr<http::Exchange>;

constexpr std::uint64_t kBodyLimitBytes = 65'536;

// What the handlers share.
struct Pulls {
  Pulls(VersionSource& source_, const PullLimits& limits)
      : source(source_),
        polls([&source_](std::function<void()> moved) { return source_.on_head_moved(moved); },
              limits.max_polls) {}

  VersionSource& source;
  internal::Polls polls;
};

// --- Heads

std::optional<Head> try_find_head(VersionSource& source, std::string_view name) {
  for (Head& head : source.heads()) {
    if (head.name == name) return std::move(head);
  }
  return std::nullopt;
}

// 200, or 304 when If-None-Match lists what the head has.
http::Response look_at_head(VersionSource& source, const std::string& name,
                            const http::Headers& conditions) {
  const auto head = try_find_head(source, name);
  if (!head) {
    return internal::refusal(
        Error(ErrorCode::kNotFound, fmt::format("there is no head `{}`", name)));
  }
  const auto record = source.version(head->id);
  const bool labelled = record && !record->labels.empty();
  auto response = internal::head_response(*head, labelled ? record->labels.front() : "");
  const auto known = http::try_match(conditions, "If-None-Match", http::etag_of(head->id),
                                     http::Comparison::kWeak);
  if (known.value_or(false)) {
    response.status = 304;
    response.body.clear();
  }
  return response;
}

Result<void> get_head(Pulls& pulls, const http::Request& request, const ExchangePtr& exchange) {
  WEFT_TRY(const auto wait, internal::wait_of(request));
  auto look = [&source = pulls.source, name = std::string(request.param("name")),
               headers = request.headers] { return look_at_head(source, name, headers); };
  auto response = look();
  if (response.status == 304 && wait.count() > 0) {
    pulls.polls.wait(std::move(look), wait, exchange);
  } else {
    exchange->respond(std::move(response));
  }
  return {};
}

// The id that the head must have now, by the request's conditions. kPreconditionFailed where it is
// clear already that it has another.
Result<std::optional<std::string>> expected_id(const http::Headers& headers,
                                               const std::string& current_id) {
  const auto none_match = headers.try_get("If-None-Match");
  if (none_match && *none_match != "*") {
    return Error(ErrorCode::kInvalidArgument, "If-None-Match: expected `*`", "If-None-Match");
  }
  const std::string etag = current_id.empty() ? "" : http::etag_of(current_id);
  const auto match = http::try_match(headers, "If-Match", etag, http::Comparison::kStrong);
  const bool refused = !match.value_or(true) || (none_match && !current_id.empty());
  if (refused) return Error(ErrorCode::kPreconditionFailed, "the head has another id");
  return match || none_match ? std::optional(current_id) : std::nullopt;
}

Result<void> put_head(Pulls& pulls, const http::Request& request, const ExchangePtr& exchange) {
  const std::string name(request.param("name"));
  WEFT_TRY(const std::string owner, owner_of(request));
  WEFT_TRY(const std::string id, internal::parse_target(request.body));
  const auto current_id = [&source = pulls.source, name] {
    const auto head = try_find_head(source, name);
    return head ? head->id : std::string();
  };
  auto answer = [exchange, current_id](const Result<CommitReport>& moved) {
    if (moved) {
      exchange->respond(internal::fresh(http::json_response(internal::commit_json(*moved))));
    } else if (moved.error().code() == ErrorCode::kPreconditionFailed) {
      exchange->respond(internal::head_conflict(moved.error(), current_id()));
    } else {
      exchange->respond(internal::refusal(moved.error()));
    }
  };
  std::string now = current_id();
  // Where it has that id already, this is most likely the same call again, whose answer did not
  // come (RFC 9110 13.1.1).
  auto expected = now == id ? std::optional(std::move(now)) : expected_id(request.headers, now);
  if (!expected) {
    answer(std::move(expected).error());
  } else {
    pulls.source.move_head(owner, name, id, *std::move(expected), std::move(answer));
  }
  return {};
}

void respond_done(const ExchangePtr& exchange) {
  http::Response response;
  response.status = 204;
  exchange->respond(internal::fresh(std::move(response)));
}

Result<void> list_heads(Pulls& pulls, const http::Request&, const ExchangePtr& exchange) {
  exchange->respond(internal::heads_response(pulls.source.heads()));
  return {};
}

Result<void> delete_head(Pulls& pulls, const http::Request& request, const ExchangePtr& exchange) {
  WEFT_TRY_VOID(pulls.source.delete_head(std::string(request.param("name"))));
  respond_done(exchange);
  return {};
}

// --- Records

Result<void> respond_record(Pulls& pulls, const std::string& id, const ExchangePtr& exchange) {
  WEFT_TRY(const VersionRecord record, pulls.source.version(id));
  exchange->respond(internal::record_response(record));
  return {};
}

Result<void> list_versions(Pulls& pulls, const http::Request&, const ExchangePtr& exchange) {
  exchange->respond(internal::records_response(pulls.source.versions()));
  return {};
}

Result<void> get_version(Pulls& pulls, const http::Request& request, const ExchangePtr& exchange) {
  return respond_record(pulls, std::string(request.param("id")), exchange);
}

Result<void> delete_version(Pulls& pulls, const http::Request& request,
                            const ExchangePtr& exchange) {
  WEFT_TRY_VOID(pulls.source.delete_version(std::string(request.param("id"))));
  respond_done(exchange);
  return {};
}

Result<void> put_label(Pulls& pulls, const http::Request& request, const ExchangePtr& exchange) {
  WEFT_TRY(const std::string id, internal::parse_target(request.body));
  WEFT_TRY_VOID(pulls.source.set_label(std::string(request.param("label")), id));
  return respond_record(pulls, id, exchange);
}

template <bool kPinned>
Result<void> set_pin(Pulls& pulls, const http::Request& request, const ExchangePtr& exchange) {
  const std::string id(request.param("id"));
  WEFT_TRY_VOID(pulls.source.set_pin(id, kPinned));
  return respond_record(pulls, id, exchange);
}

// --- The table

using Handle = Result<void> (*)(Pulls&, const http::Request&, const ExchangePtr&);

http::Route route(const std::shared_ptr<Pulls>& pulls, std::string method, std::string pattern,
                  Handle handle) {
  http::Route row;
  row.access = method == "GET" ? http::Access::kRead : http::Access::kAdmin;
  row.method = std::move(method);
  row.pattern = std::move(pattern);
  row.body_limit_bytes = kBodyLimitBytes;
  row.handler = [pulls, handle](const http::Request& request, const ExchangePtr& exchange) {
    if (const auto handled = handle(*pulls, request, exchange); !handled) {
      exchange->respond(internal::refusal(handled.error()));
    }
  };
  return row;
}

}  // namespace

std::vector<http::Route> pull_routes(VersionSource& source, PullLimits limits) {
  const auto pulls = std::make_shared<Pulls>(source, limits);
  std::vector<http::Route> routes = {
      route(pulls, "GET", "/weft/v1/heads", list_heads),
      route(pulls, "GET", "/weft/v1/heads/{name}", get_head),
      route(pulls, "PUT", "/weft/v1/heads/{name}", put_head),
      route(pulls, "DELETE", "/weft/v1/heads/{name}", delete_head),
      route(pulls, "GET", "/weft/v1/versions", list_versions),
      route(pulls, "GET", "/weft/v1/versions/{id}", get_version),
      route(pulls, "DELETE", "/weft/v1/versions/{id}", delete_version),
      route(pulls, "PUT", "/weft/v1/versions/{id}/pin", set_pin<true>),
      route(pulls, "DELETE", "/weft/v1/versions/{id}/pin", set_pin<false>),
      route(pulls, "PUT", "/weft/v1/labels/{label}", put_label),
  };
  for (http::Route& row : internal::data_routes(source)) routes.push_back(std::move(row));
  for (http::Route& row : internal::delta_routes(source, {pulls, &pulls->polls}))
    routes.push_back(std::move(row));
  return routes;
}

}  // namespace weft
