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

struct ListenOptions {
  http::ServerOptions http{};                  // but for the certificate
  std::string certificate_file{}, key_file{};  // as http::blocking_load_certificate(); "": no https
  bool insecure = false;                       // may listen beyond loopback without an admin key
};
// Whoever listens beyond this machine has an admin key, or says that it is meant. Errors:
// kInvalidArgument; of the certificate.
Result<http::ServerOptions> blocking_server_options(const ListenOptions& listen);

// "listening on http://HOST:PORT", or https, on standard error, past the log: programs wait for
// this line. Before it "admin routes at URL", where they are elsewhere; and a warning, where others
// get in without an admin key.
void announce_listening(const http::ServerOptions& options, std::uint16_t port,
                        const std::string& admin_url);

}  // namespace weft
