#pragma once
// The part of the pull routes that offers deltas, and says which way to a version is the cheapest.
// docs/protocol.md.

#include <memory>
#include <vector>

#include "weft/http/server.h"
#include "weft/transfer/internal/polls.h"
#include "weft/transfer/version_source.h"

namespace weft::internal {

// `polls` hear when the source has changed.
std::vector<http::Route> delta_routes(VersionSource& source, std::shared_ptr<Polls> polls);

}  // namespace weft::internal
