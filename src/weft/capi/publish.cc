// weft_publish(), and the client that it and the others talk through.

#include <utility>

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/puller.h"

namespace weft::capi {

void copy_id(const std::string& id, char (&out)[WEFT_ID_SIZE]) {
  std::memset(out, 0, WEFT_ID_SIZE);
  std::memcpy(out, id.data(), std::min<std::size_t>(id.size(), WEFT_ID_SIZE - 1));
}

Error at_server(const http::Client& client, Error error) {
  const bool is_about_server =
      error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kMethodNotAllowed ||
      error.code() == ErrorCode::kUnauthenticated || error.code() == ErrorCode::kForbidden;
  const std::string server = client.server().text();
  const bool says_which = error.message().starts_with(server);
  return is_about_server && !says_which ? std::move(error).with_context(server) : error;
}

namespace {

Result<http::ClientOptions> read_client_options(const weft_client_options* given) {
  WEFT_TRY(const weft_client_options known, read_struct(given, "options"));
  http::ClientOptions options;
  options.key = text_or_empty(known.key);
  options.ca_file = text_or_empty(known.ca_file);
  if (known.connect_timeout_ms > 0)
    options.connect_timeout = std::chrono::milliseconds(known.connect_timeout_ms);
  if (known.idle_timeout_ms > 0)
    options.idle_timeout = std::chrono::milliseconds(known.idle_timeout_ms);
  if (known.max_connections > 0) options.max_connections = known.max_connections;
  return options;
}

PushOptions push_options(const weft_publish_options& known) {
  PushOptions options;
  options.label = text_or_empty(known.label);
  options.session = text_or_empty(known.session);
  options.head = text_or_empty(known.head);
  options.if_match = text_or_empty(known.if_match);
  options.parent = text_or_empty(known.parent);
  options.origin = text_or_empty(known.origin);
  options.on_update = text_or_empty(known.on_update);
  options.base = text_or_empty(known.base_id);
  if (known.connections > 0) options.connections = known.connections;
  options.retries = retries_of(known.retries, options.retries);
  options.announce = static_cast<Announce>(known.announce);
  options.commit = !known.stage_only;
  options.zstd = known.zstd;
  options.partial = known.partial;
  options.progress = progress_of(known);
  return options;
}
static_assert(static_cast<int>(Announce::kAutomatic) == WEFT_ANNOUNCE_AUTOMATIC);
static_assert(static_cast<int>(Announce::kAlways) == WEFT_ANNOUNCE_ALWAYS);
static_assert(static_cast<int>(Announce::kNever) == WEFT_ANNOUNCE_NEVER);

weft_publish_report report_of(const PushReport& report) {
  weft_publish_report out{};
  copy_id(report.id, out.id);
  out.resumed = report.resumed;
  out.converted = report.converted;
  out.total_bytes = report.total_bytes;
  out.sent_bytes = report.sent_bytes;
  out.skipped_bytes = report.skipped_bytes;
  for (std::size_t i = 0; i < report.payload_bytes.size(); ++i) {
    const auto encoding = static_cast<Encoding>(i);
    if (encoding != Encoding::kIdentity && encoding != Encoding::kZstd)
      out.delta_bytes += report.payload_bytes[i];
  }
  out.hash_seconds = report.hash_seconds;
  out.send_seconds = report.send_seconds;
  out.commit_seconds = report.commit_seconds;
  out.total_seconds = report.total_seconds;
  out.stall_us = report.stall_us;
  return out;
}

Result<void> blocking_publish(http::Client& client, const weft_source* source,
                              const weft_publish_options* given, weft_publish_report* report) {
  WEFT_TRY_VOID(check_given(source, "source"));
  WEFT_TRY(const weft_source what, read_struct(source, "source"));
  WEFT_TRY(const weft_publish_options known, read_struct(given, "options"));
  if (known.announce > WEFT_ANNOUNCE_NEVER) {
    return Error(ErrorCode::kInvalidArgument, "options: announce is none of weft_announce");
  }
  WEFT_TRY(const auto opened, blocking_open(what));
  PushOptions options = push_options(known);
  WEFT_TRY(const auto base, blocking_open_base(known.base));
  options.base_source = base.get();
  auto pushed = blocking_push(client, *opened, options);
  if (!pushed) return at_server(client, std::move(pushed).error());
  return write_struct(report, report_of(*pushed), "report");
}

}  // namespace
}  // namespace weft::capi

extern "C" {

using weft::Result;
namespace capi = weft::capi;

weft_code weft_client_open(const char* url, const weft_client_options* options,
                           weft_client** client) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(url, "url"));
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY(auto parsed, weft::http::Url::parse(url));
    WEFT_TRY(auto read, capi::read_client_options(options));
    *client = new weft_client{weft::http::Client::make(std::move(parsed), std::move(read))};
    return {};
  });
}

void weft_client_cancel(weft_client* client) {
  client->client->cancel();
}

void weft_client_close(weft_client* client) {
  delete client;
}

weft_code weft_resolve(weft_client* client, const char* version, char id[WEFT_ID_SIZE]) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    WEFT_TRY_VOID(capi::check_given(version, "version"));
    auto found = weft::blocking_resolve_version(*client->client, version);
    if (!found) return capi::at_server(*client->client, std::move(found).error());
    char text[WEFT_ID_SIZE];
    capi::copy_id(*found, text);
    std::memcpy(id, text, sizeof(text));
    return {};
  });
}

weft_code weft_publish(weft_client* client, const weft_source* source,
                       const weft_publish_options* options, weft_publish_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(client, "client"));
    return capi::blocking_publish(*client->client, source, options, report);
  });
}

}  // extern "C"
