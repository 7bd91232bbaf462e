#pragma once
// What lies where in a store's folder, and its small files as text. docs/store.md.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/folder_lock.h"
#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/protocol/catalog.h"
#include "weft/transfer/version_source.h"

namespace weft::store {

// The 64 hex digits of a digest.
std::string digest_hex(const Digest& digest);
std::optional<Digest> try_parse_digest_hex(std::string_view hex);

struct Layout {
  std::filesystem::path root;

  std::filesystem::path catalog() const { return root / "catalog.json"; }
  std::filesystem::path versions() const { return root / "versions"; }
  std::filesystem::path objects() const { return root / "objects"; }
  std::filesystem::path uploads() const { return root / "uploads"; }
  std::filesystem::path deltas() const { return root / "deltas"; }
  std::filesystem::path aside() const { return root / "aside"; }
  // `id`: "blake3:...".
  std::filesystem::path manifest(std::string_view id) const;
  std::filesystem::path blocks(std::string_view id) const;
  std::filesystem::path object(const Digest& digest) const;
  // Of the delta to version `id` from `base`.
  std::filesystem::path delta_index(std::string_view id, std::string_view base) const;
  std::filesystem::path delta_pack(std::string_view id, std::string_view base,
                                   std::size_t pack) const;
};

// {id, base} of what delta_index() names so.
std::optional<std::pair<std::string, std::string>> try_parse_delta_name(
    const std::filesystem::path& path);

// Takes the folder for this process; makes it where there is none. Errors: as FolderLock. Blocks.
Result<FolderLock> blocking_lock(const Layout& layout);

// What is in a folder, sorted; nothing when it cannot be read.
std::vector<std::filesystem::path> names_in(const std::filesystem::path& folder);

std::string catalog_json(const Catalog& catalog);
// Errors: kCorrupt naming what is wrong.
Result<Catalog> parse_catalog(std::string_view json);

// The values of all blocks, 32 bytes each, in manifest order.
std::string blocks_bytes(const std::vector<std::vector<Digest>>& blocks);
// A version from its two files, every digest checked against the one above it. Errors: kCorrupt,
// kNotFound.
Result<std::shared_ptr<const VersionContent>> blocking_read_version(const Layout& layout,
                                                                    const std::string& id);

// Sizes in bytes of a manifest's entries: tensors, then files.
std::vector<std::uint64_t> entry_sizes(const Manifest& manifest);

}  // namespace weft::store
