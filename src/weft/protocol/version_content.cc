#include "weft/protocol/version_content.h"

#include <span>
#include <utility>

namespace weft {

std::shared_ptr<const VersionContent> make_version_content(
    Manifest manifest, std::vector<std::vector<Digest>> blocks) {
  VersionContent content;
  content.manifest_json = manifest_json(manifest);
  content.id = digest_text(digest_of(std::as_bytes(std::span(content.manifest_json))));
  content.manifest = std::move(manifest);
  content.blocks = std::move(blocks);
  return std::make_shared<const VersionContent>(std::move(content));
}

}  // namespace weft
