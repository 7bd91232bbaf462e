#include "listen_flags.h"

#include <CLI/CLI.hpp>

#include "flag_kinds.h"

namespace weft {
namespace {

constexpr double kMaxSeconds = 86'400;

// The second names are vLLM's and uvicorn's.
void add_certificate_flags(CLI::App& command, ListenOptions& listen) {
  CLI::Option* const certificate =
      command
          .add_option("--tls-cert,--ssl-certfile", listen.certificate_file,
                      "certificate chain in PEM: listen with https")
          ->option_text("FILE");
  command
      .add_option("--tls-key,--ssl-keyfile", listen.key_file, "its key; default: in the same file")
      ->option_text("FILE")
      ->needs(certificate);
}

void add_limits(CLI::App& command, http::ServerOptions& http) {
  command.add_option("--max-connections", http.max_connections, "at a time")
      ->check(check_at_least_one)
      ->capture_default_str();
  add_seconds(command, "--header-timeout", http.header_timeout,
              "seconds in which the head of a request must come", between(1, kMaxSeconds));
  add_seconds(command, "--idle-timeout", http.idle_timeout,
              "seconds of silence after which a connection is closed", between(1, kMaxSeconds));
}

}  // namespace

void add_listen_flags(CLI::App& command, ListenOptions& listen, KeyFlags& keys) {
  command.add_option("--host", listen.http.host, "address to listen on")->capture_default_str();
  command.add_option("--port", listen.http.port, "port; 0 takes a free one")
      ->check(CLI::Range(0, UINT16_MAX))
      ->capture_default_str();
  command
      .add_option(
          "--admin-listen", listen.http.admin_listen,
          "HOST:PORT or unix:PATH: what needs the admin key is there alone, beside all else")
      ->option_text("ADDRESS");
  add_limits(command, listen.http);
  add_key_flags(command, keys);
  add_certificate_flags(command, listen);
  command.add_flag("--insecure", listen.insecure,
                   "listen beyond this machine without an admin key");
}

}  // namespace weft
