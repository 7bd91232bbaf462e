#include "weft/app/server_process.h"

#include <cstdio>

#include <fmt/core.h>

#include "weft/base/log.h"

namespace weft {
namespace {

bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

bool is_exposed(std::string_view host, const http::ServerKeys& keys) {
  return !is_loopback(host) && keys.admin_key.empty();
}

}  // namespace

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

Result<void> check_exposure(std::string_view host, const http::ServerKeys& keys, bool insecure) {
  if (insecure || !is_exposed(host, keys)) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("--host {} lets others in, and whoever gets in can replace the weights: "
                           "set --admin-key, or say --insecure",
                           host));
}

Result<std::shared_ptr<const http::TlsContext>> blocking_load_tls(
    const std::string& certificate_file, const std::string& key_file) {
  if (certificate_file.empty()) return std::shared_ptr<const http::TlsContext>();
  return http::blocking_load_certificate(certificate_file, key_file);
}

void announce_listening(const http::ServerOptions& options, std::uint16_t port) {
  if (is_exposed(options.host, options.keys)) {
    log_warning(
        "{} is not loopback and there is no admin key: WHOEVER REACHES THIS PORT CAN REPLACE THE "
        "WEIGHTS",
        options.host);
  }
  http::Url url;
  url.scheme = options.tls ? "https" : "http";
  url.host = options.host;
  url.port = port;
  fmt::print(stderr, "listening on {}\n", url.text());
}

}  // namespace weft
