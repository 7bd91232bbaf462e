#pragma once
// `weft store`: a folder of versions behind an HTTP server; its check and its garbage collection.

#include <cstdint>
#include <filesystem>
#include <string>

#include "weft/app/server_process.h"
#include "weft/store/store.h"

namespace weft {

struct StoreServeOptions {
  std::filesystem::path folder;
  ListenOptions listen;
  StoreOptions store;
};

// Each returns the process's exit status; an error is one line on standard error.

// Serves until SIGINT or SIGTERM. "listening on URL" on standard error says that it is ready. Must
// be called before other threads are started (they would take the signals). Blocks.
int blocking_serve_store(const StoreServeOptions& options);

// 1 when a fault was found, repaired or not. Blocks.
int blocking_run_fsck(const std::filesystem::path& folder, bool repair, bool as_json);

// Retention and garbage collection, once. Blocks.
int blocking_run_gc(const std::filesystem::path& folder, const StoreOptions& options, bool as_json);

}  // namespace weft
