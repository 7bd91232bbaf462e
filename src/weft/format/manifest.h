#pragma once
// A version's manifest: its tensors and files with their digests, as canonical JSON (RFC 8785). The
// digest of these bytes is the version's id: same content, same id, whoever made it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/tensor/tensor.h"

namespace weft {

struct ManifestTensor {
  TensorSpec spec;
  Digest digest;  // plain BLAKE3 of the tensor's bytes
};
struct ManifestFile {
  std::string name;  // "config.json": no slash, not "." or ".."
  std::uint64_t size_bytes = 0;
  Digest digest;
};
struct Manifest {
  std::vector<ManifestTensor> tensors;  // sorted by name, bytewise
  std::vector<ManifestFile> files;      // sorted by name, bytewise
};

// Its entries: the tensors, then the files.
std::size_t entry_count(const Manifest& manifest);
const std::string& entry_name(const Manifest& manifest, std::size_t entry);
const Digest& entry_digest(const Manifest& manifest, std::size_t entry);
// Requires: 64 bits are enough for it, as in every manifest that was parsed.
std::uint64_t entry_size_bytes(const Manifest& manifest, std::size_t entry);

// {"files":[...],"format":"weft-manifest-1","tensors":[{"digest","dtype","name","shape"}]}.
std::string manifest_json(const Manifest& manifest);
// "blake3:..." of manifest_json.
std::string manifest_id(const Manifest& manifest);
// Accepts exactly the bytes manifest_json writes. Errors: kCorrupt naming what differs.
Result<Manifest> parse_manifest(std::string_view json);

}  // namespace weft
