// weft_offer: a trainer's versions, pulled by engines.

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"
#include "weft/http/server.h"
#include "weft/transfer/memory_versions.h"
#include "weft/transfer/pull_routes.h"

// The server first, then what it hands out.
struct weft_offer {
  std::shared_ptr<weft::MemoryVersions> versions;
  std::unique_ptr<weft::http::Server> server;
  std::string url;
};

namespace weft::capi {
namespace {

Result<weft_offer*> blocking_open_offer(const weft_listen_options* listen) {
  WEFT_TRY(const http::ServerOptions options, blocking_listen_options(listen));
  auto opened = std::make_unique<weft_offer>();
  opened->versions = MemoryVersions::make();
  std::vector<http::Route> routes = pull_routes(*opened->versions);
  routes.push_back(health_route());
  WEFT_TRY(opened->server, http::Server::create(options, std::move(routes)));
  opened->url = url_of(options, opened->server->port());
  return opened.release();
}

Result<void> blocking_offer(weft_offer& offer, const weft_source* source,
                            const weft_offer_options* given, weft_publish_report* report) {
  WEFT_TRY_VOID(check_given(source, "source"));
  WEFT_TRY(const weft_source what, read_struct(source, "source"));
  WEFT_TRY(const weft_offer_options known, read_struct(given, "options"));
  WEFT_TRY(const auto opened, blocking_open(what));
  OfferOptions options;
  options.label = text_or_empty(known.label);
  options.threads = known.threads > 0 ? known.threads : kThreads;
  options.delta = !known.no_delta;
  options.delta_goal = known.small_delta ? DeltaGoal::kSmall : DeltaGoal::kFast;
  options.progress = progress_of(known);
  WEFT_TRY(const OfferReport done, offer.versions->blocking_offer(*opened, options));
  weft_publish_report out{};
  copy_id(done.id, out.id);
  out.total_bytes = done.total_bytes;
  out.delta_bytes = done.delta_bytes;
  out.hash_seconds = done.hash_seconds;
  out.total_seconds = done.hash_seconds + done.delta_seconds;
  return write_struct(report, out, "report");
}

}  // namespace
}  // namespace weft::capi

extern "C" {

using weft::Result;
namespace capi = weft::capi;

weft_code weft_offer_open(const weft_listen_options* listen, weft_offer** offer) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(offer, "offer"));
    WEFT_TRY(*offer, capi::blocking_open_offer(listen));
    return {};
  });
}

const char* weft_offer_url(const weft_offer* offer) {
  return offer->url.c_str();
}

weft_code weft_offer_publish(weft_offer* offer, const weft_source* source,
                             const weft_offer_options* options, weft_publish_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(offer, "offer"));
    return capi::blocking_offer(*offer, source, options, report);
  });
}

void weft_offer_close(weft_offer* offer) {
  if (offer != nullptr) offer->server->blocking_stop(capi::kStopGrace);
  delete offer;
}

}  // extern "C"
