#pragma once
// What every `weft` command that listens does alike.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/http/server.h"

namespace weft {

// SIGINT and SIGTERM wait for blocking_wait(); threads started from here on leave them alone.
class StopSignals {
 public:
  StopSignals();
  // Afterwards a second signal ends the process at once. Returns the signal.
  int blocking_wait();

 private:
  sigset_t signals_{};
};

// Answers that have begun may take so long to end when the server stops.
inline constexpr std::chrono::seconds kStopGrace{5};
inline constexpr int kExitBySignal = 128;  // Source: POSIX shells' convention

// Whoever listens beyond this machine has an admin key, or says that it is meant. Errors:
// kInvalidArgument.
Result<void> check_exposure(std::string_view host, const http::ServerKeys& keys, bool insecure);

// What http::blocking_load_certificate() makes; null for a `certificate_file` "".
Result<std::shared_ptr<const http::TlsContext>> blocking_load_tls(
    const std::string& certificate_file, const std::string& key_file);

// "listening on http://HOST:PORT", or https, on standard error, past the log: programs wait for
// this line. Before it a warning, where others get in without an admin key.
void announce_listening(const http::ServerOptions& options, std::uint16_t port);

}  // namespace weft
