#pragma once
// The routes that hand versions out: heads, records, manifests, block lists, packs, blobs, and a
// safetensors file. docs/protocol.md.

#include <cstddef>
#include <vector>

#include "weft/http/server.h"
#include "weft/transfer/version_source.h"

namespace weft {

struct PullLimits {
  std::size_t max_polls = 4096;  // requests that wait for a head to move; more get 503
};

// `source` must be there until the server of these routes has stopped.
std::vector<http::Route> pull_routes(VersionSource& source, PullLimits limits = {});

}  // namespace weft
