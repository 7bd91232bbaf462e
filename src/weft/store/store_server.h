#pragma once
// A store behind an HTTP server: `weft store`, and a store inside another program.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "weft/base/result.h"
#include "weft/http/server.h"
#include "weft/store/store.h"

namespace weft {

// Listens until it is stopped or destroyed. Thread-safe.
class StoreServer {
 public:
  // Errors: those of Store::blocking_open() and http::Server::create(). Blocks.
  static Result<std::unique_ptr<StoreServer>> blocking_start(const std::filesystem::path& folder,
                                                             StoreOptions options,
                                                             const http::ServerOptions& http);
  virtual ~StoreServer() = default;

  virtual std::uint16_t port() const = 0;
  virtual std::string admin_url() const = 0;  // as http::Server's
  virtual Store& store() = 0;
  // As http::Server::blocking_stop().
  virtual void blocking_stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace weft
