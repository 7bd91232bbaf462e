#pragma once
// The part of the pull routes whose answers never change: what lies under a version's id or a
// digest.

#include <vector>

#include "weft/http/server.h"
#include "weft/transfer/version_source.h"

namespace weft::internal {

std::vector<http::Route> data_routes(VersionSource& source);

}  // namespace weft::internal
