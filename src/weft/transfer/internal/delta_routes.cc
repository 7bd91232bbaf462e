#include "weft/transfer/internal/delta_routes.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/base/wording.h"
#include "weft/protocol/delta_plan.h"
#include "weft/transfer/internal/get_route.h"
#include "weft/transfer/internal/pull_messages.h"
#include "weft/transfer/version_layout.h"

namespace weft::internal {
namespace {

namespace json = boost::json;

// Ids in one query; a reader has two versions, or a few.
constexpr std::size_t kMaxHave = 256;

void respond(const ExchangePtr& exchange, const json::object& body) {
  exchange->respond(fresh(http::json_response(json::serialize(body))));
}

json::object offer_object(const OfferedDelta& delta) {
  json::array packs;
  for (const DeltaPack& pack : delta.index().packs) packs.push_back(pack.size_bytes);
  return {{"base", digest_text(delta.index().base)},
          {"bytes", delta.total_bytes()},
          {"index_bytes", delta.index_bytes().size()},
          {"packs", std::move(packs)}};
}

Result<void> list_deltas(VersionSource& source, const http::Request& request,
                         const ExchangePtr& exchange) {
  WEFT_TRY(const VersionRecord record, source.version(std::string(request.param("id"))));
  json::array offers;
  for (const OfferedDeltaPtr& delta : source.deltas()) {
    if (digest_text(delta->index().target) == record.id) offers.push_back(offer_object(*delta));
  }
  respond(exchange, {{"deltas", std::move(offers)}});
  return {};
}

// --- Index and packs

Result<OfferedDeltaPtr> find_delta(VersionSource& source, const http::Request& request) {
  const std::string id(request.param("id")), base(request.param("base"));
  if (auto delta = source.try_find_delta(id, base)) return delta;
  return Error(ErrorCode::kNotFound, fmt::format("no delta from `{}` to `{}` here", base, id));
}

Result<void> get_index(VersionSource& source, const http::Request& request,
                       const ExchangePtr& exchange) {
  WEFT_TRY(const OfferedDeltaPtr delta, find_delta(source, request));
  const auto bytes = std::as_bytes(std::span(delta->index_bytes()));
  return answer_bytes(request, exchange, immutable(digest_text(digest_of(bytes)), 0), {bytes},
                      delta);
}

Result<void> get_pack(VersionSource& source, const http::Request& request,
                      const ExchangePtr& exchange) {
  WEFT_TRY(const OfferedDeltaPtr delta, find_delta(source, request));
  const auto& packs = delta->index().packs;
  const auto pack = try_parse_pack(request.param("n"), packs.size());
  if (!pack) {
    return Error(ErrorCode::kNotFound,
                 fmt::format("there is no pack `{}`: the delta has {}", request.param("n"),
                             counted(packs.size(), "pack")));
  }
  const DeltaPack& row = packs[*pack];
  const auto fill = [&](std::uint64_t offset_bytes, std::uint64_t size_bytes,
                        std::vector<http::BodyPart>& parts) -> Result<void> {
    WEFT_TRY(auto file, delta->open_pack(*pack));
    parts.push_back({{}, std::move(file), offset_bytes, size_bytes});
    return {};
  };
  return answer(request, exchange, immutable(digest_text(row.digest), row.size_bytes), fill, delta);
}

// --- The plan

// "ID,ID", or nothing.
Result<std::set<std::string>> have_of(const http::Request& request) {
  const std::string text(request.try_query("have").value_or(""));
  std::set<std::string> have;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view id = rest.substr(0, rest.find(','));
    if (!try_parse_digest(id) || have.size() == kMaxHave) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("have: expected at most {} ids with commas between, not `{}`",
                               kMaxHave, text),
                   "have");
    }
    have.emplace(id);
    rest.remove_prefix(std::min(rest.size(), id.size() + 1));
  }
  return have;
}

// What a reader fetches for a version in full: manifest, values of the blocks, data.
Result<std::uint64_t> full_bytes(const VersionContent& content) {
  WEFT_TRY(const VersionLayout layout, VersionLayout::create(content.manifest));
  std::uint64_t blocks = 0;
  for (const auto& values : content.blocks) blocks += values.size();
  return layout.total_bytes() + content.manifest_json.size() + blocks * sizeof(Digest::bytes);
}

Result<json::object> plan_object(VersionSource& source, const std::string& id,
                                 const std::set<std::string>& have) {
  WEFT_TRY(const auto data, source.open(id));
  std::vector<TransferOffer> offers(1);
  offers[0].id = id;
  WEFT_TRY(offers[0].bytes, full_bytes(data->content()));
  for (const OfferedDeltaPtr& delta : source.deltas()) {
    TransferOffer offer{digest_text(delta->index().target), digest_text(delta->index().base),
                        delta->total_bytes()};
    const auto content = source.content(offer.id);
    if (!content) continue;  // it was just let go
    offer.bytes += (*content)->manifest_json.size();
    offers.push_back(std::move(offer));
  }
  const auto plan = try_plan_transfer(offers, have, id);
  WEFT_CHECK(plan.has_value());  // there is always the version in full
  json::array steps;
  for (const std::size_t step : plan->steps) {
    json::object row{{"id", offers[step].id}, {"bytes", offers[step].bytes}};
    if (offers[step].base) row["base"] = *offers[step].base;
    steps.push_back(std::move(row));
  }
  return json::object{{"id", id},
                      {"bytes", plan->bytes},
                      {"full_bytes", offers[0].bytes},
                      {"steps", std::move(steps)}};
}

Result<void> get_plan(VersionSource& source, Polls& polls, const http::Request& request,
                      const ExchangePtr& exchange) {
  WEFT_TRY(const auto wait, wait_of(request));
  WEFT_TRY(auto have, have_of(request));
  const std::string id(request.param("id"));
  const auto deadline = std::chrono::steady_clock::now() + wait;
  auto look = [&source, id, have = std::move(have), deadline] {
    http::Response response;
    response.status = 304;
    const bool is_time_up = std::chrono::steady_clock::now() >= deadline;
    if (!is_time_up && source.expects_delta(id) && !have.contains(id)) return response;
    const auto plan = plan_object(source, id, have);
    return plan ? fresh(http::json_response(json::serialize(*plan))) : refusal(plan.error());
  };
  auto response = look();
  if (response.status == 304) {
    polls.wait(std::move(look), wait, exchange);
  } else {
    exchange->respond(std::move(response));
  }
  return {};
}

}  // namespace

std::vector<http::Route> delta_routes(VersionSource& source, std::shared_ptr<Polls> polls) {
  return {
      get_route(source, "/weft/v1/versions/{id}/deltas", list_deltas),
      get_route(source, "/weft/v1/versions/{id}/deltas/{base}", get_index),
      get_route(source, "/weft/v1/versions/{id}/deltas/{base}/packs/{n}", get_pack),
      get_route("/weft/v1/versions/{id}/plan",
                [&source, polls = std::move(polls)](const http::Request& request,
                                                    const ExchangePtr& exchange) {
                  return get_plan(source, *polls, request, exchange);
                }),
  };
}

}  // namespace weft::internal
