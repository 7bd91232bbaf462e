#pragma once
// ResidentSource: a receiver as a source of versions: what it serves, and what it served before.

#include <memory>

#include "weft/transfer/internal/core.h"
#include "weft/transfer/version_source.h"

namespace weft::internal {

std::unique_ptr<VersionSource> make_resident_source(std::shared_ptr<Core> core);

}  // namespace weft::internal
