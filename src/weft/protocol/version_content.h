#pragma once
// What a version is made of. Immutable.

#include <memory>
#include <string>
#include <vector>

#include "weft/digest/digest.h"
#include "weft/format/manifest.h"

namespace weft {

// A version's manifest and the values of all its blocks.
struct VersionContent {
  std::string id;
  Manifest manifest;
  std::string manifest_json;
  // [entries][blocks], entries in manifest order, tensors then files; empty when converted.
  std::vector<std::vector<Digest>> blocks;
};

// Requires: the manifest is sorted. `blocks` as in VersionContent.
std::shared_ptr<const VersionContent> make_version_content(Manifest manifest,
                                                           std::vector<std::vector<Digest>> blocks);

}  // namespace weft
