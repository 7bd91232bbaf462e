// What Archive does once, at the start.

#include <algorithm>
#include <set>
#include <system_error>

#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/store/internal/archive.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

// When a file was written, as records tell time.
std::int64_t written_ms(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::file_clock::to_sys(time).time_since_epoch())
      .count();
}

std::uint64_t total_bytes(const VersionContent& content) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t size_bytes : entry_sizes(content.manifest)) bytes += size_bytes;
  return bytes;
}

}  // namespace

Result<void> Archive::blocking_load() {
  for (const fs::path& folder : {layout_.versions(), layout_.objects(), layout_.uploads()}) {
    WEFT_TRY_VOID(disk_.make_dirs(folder));
  }
  WEFT_TRY_VOID(disk_.remove(layout_.catalog().string() + ".tmp"));
  WEFT_TRY_VOID(blocking_load_objects());
  WEFT_TRY(Catalog catalog, blocking_load_catalog());
  WEFT_TRY_VOID(blocking_load_versions(catalog));
  blocking_drop_unlisted();
  return deltas_.blocking_load([this](const std::string& id) { return find_content(id); });
}

Result<void> Archive::blocking_load_objects() {
  for (const fs::path& folder : names_in(layout_.objects())) {
    for (const fs::path& path : names_in(folder)) {
      const auto digest = try_parse_digest_hex(path.filename().string());
      if (!digest || layout_.object(*digest) != path) {
        log_warning("store: {} is no object; it is left alone", path.string());
        continue;
      }
      object_bytes_ += file_bytes(path);
      objects_->with([&](ObjectLedger& ledger) { ledger.add(*digest); });
    }
  }
  return {};
}

Result<Catalog> Archive::blocking_load_catalog() {
  Catalog catalog;
  const auto text = blocking_read_file(layout_.catalog(), 1ull << 30);
  if (text) {
    auto parsed = parse_catalog(*text);
    if (parsed || parsed.error().code() == ErrorCode::kUnsupported) return parsed;
    set_aside(layout_.catalog(), parsed.error());
  } else if (text.error().code() != ErrorCode::kNotFound) {
    return text.error();
  }
  blocking_restore(catalog);
  WEFT_TRY_VOID(disk_.replace(layout_.catalog(), catalog_json(catalog)));
  return catalog;
}

// Without a catalog, what is whole on disk is a version; labels and heads are gone.
void Archive::blocking_restore(Catalog& catalog) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const fs::path& path : names_in(layout_.versions())) {
    const auto digest = try_parse_digest_hex(path.stem().string());
    if (digest && path.extension() == ".json") {
      found.emplace_back(written_ms(path), digest_text(*digest));
    }
  }
  std::ranges::sort(found);
  for (const auto& [created_ms, id] : found) {
    const auto content = blocking_read_version(layout_, id);
    if (!content) {
      set_aside(layout_.manifest(id), content.error());
      continue;
    }
    CatalogVersion version;
    version.id = id;
    version.sequence = catalog.versions().size() + 1;
    version.created_ms = created_ms;
    version.tensors = (*content)->manifest.tensors.size();
    version.bytes = total_bytes(**content);
    catalog.restore(version);
    log_warning("store: {} is recorded again; its labels and heads are lost", id);
  }
}

Result<void> Archive::blocking_load_versions(Catalog& catalog) {
  std::vector<std::string> ids;
  for (const auto& [id, version] : catalog.versions()) ids.push_back(id);
  for (const std::string& id : ids) {
    auto content = blocking_read_version(layout_, id);
    if (!content) {
      const ErrorCode code = content.error().code();
      if (code != ErrorCode::kCorrupt && code != ErrorCode::kNotFound) return content.error();
      set_aside(layout_.manifest(id), content.error());
      set_aside(layout_.blocks(id), content.error());
      catalog.drop(id);
      continue;
    }
    std::set<Digest> lost;
    for (const auto& entry : (*content)->blocks) {
      for (const Digest& digest : entry) {
        if (!objects_->with([&](ObjectLedger& ledger) { return ledger.has(digest); })) {
          lost.insert(digest);
        }
      }
    }
    if (!lost.empty()) {
      log_warning("store: {} has lost {}; a push of this version brings them again", id,
                  counted(lost.size(), "block"));
    }
    stored_.emplace(id, std::make_shared<const Stored>(*content, objects_));
    index(**content);
  }
  catalog_ = catalog;
  return {};
}

// Files of a commit that did not come to its end, or of a removal.
void Archive::blocking_drop_unlisted() {
  for (const fs::path& path : names_in(layout_.versions())) {
    const auto digest = try_parse_digest_hex(path.stem().string());
    if (digest && stored_.contains(digest_text(*digest))) continue;
    const auto removed = disk_.remove(path);
    if (!removed) log_warning("store: {}", removed.error().message());
  }
}

void Archive::set_aside(const fs::path& path, const Error& why) {
  log_warning("store: {}: set aside: {}", path.string(), why.message());
  auto moved = disk_.make_dirs(layout_.aside());
  if (moved) {
    moved = disk_.rename(
        path, layout_.aside() / fmt::format("{}.{}", path.filename().string(), unix_ms()));
  }
  if (!moved) log_warning("store: {}", moved.error().message());
}

}  // namespace weft::store
