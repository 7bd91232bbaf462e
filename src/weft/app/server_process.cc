#include "weft/app/server_process.h"

#include <cstdio>

#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/http/access.h"

namespace weft {
StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

int StopSignals::blocking_wait() {
  int signal = 0;
  sigwait(&signals_, &signal);
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  return signal;
}

Result<http::ServerOptions> blocking_server_options(const ListenOptions& listen) {
  http::ServerOptions options = listen.http;
  if (!listen.insecure && http::is_exposed(options)) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} lets others in, and whoever gets in can replace the weights: set "
                    "--admin-key, or say --insecure",
                    options.admin_listen.empty() ? "--host " + options.host
                                                 : "--admin-listen " + options.admin_listen));
  }
  if (!listen.certificate_file.empty()) {
    WEFT_TRY(options.tls,
             http::blocking_load_certificate(listen.certificate_file, listen.key_file));
  }
  return options;
}

void announce_listening(const http::ServerOptions& options, std::uint16_t port,
                        const std::string& admin_url) {
  if (http::is_exposed(options)) {
    log_warning(
        "{} is not loopback and there is no admin key: WHOEVER REACHES THIS PORT CAN REPLACE THE "
        "WEIGHTS",
        options.admin_listen.empty() ? options.host : options.admin_listen);
  }
  if (!admin_url.empty()) fmt::print(stderr, "admin routes at {}\n", admin_url);
  http::Url url;
  url.scheme = options.tls ? "https" : "http";
  url.host = options.host;
  url.port = port;
  fmt::print(stderr, "listening on {}\n", url.text());
}

}  // namespace weft
