#include "weft/store/internal/archive.h"

#include <algorithm>
#include <system_error>

#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/store/internal/archive_data.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Stored::Stored(std::shared_ptr<const VersionContent> content,
               std::shared_ptr<Guarded<ObjectLedger>> objects)
    : content_(std::move(content)), objects_(std::move(objects)) {
  objects_->with([&](ObjectLedger& ledger) {
    for (const auto& entry : content_->blocks) {
      for (const Digest& digest : entry) ledger.reference(digest);
    }
  });
}

Stored::~Stored() {
  objects_->with([&](ObjectLedger& ledger) {
    for (const auto& entry : content_->blocks) {
      for (const Digest& digest : entry) ledger.release(digest);
    }
  });
}

Archive::Archive(Layout layout, const Disk& disk, JobThread& jobs, Retention retention)
    : layout_(std::move(layout)),
      disk_(disk),
      jobs_(jobs),
      retention_(retention),
      deltas_(layout_, disk_),
      objects_(std::make_shared<Guarded<ObjectLedger>>()) {}

std::vector<VersionRecord> Archive::versions() {
  const std::lock_guard lock(mutex_);
  std::vector<VersionRecord> records;
  for (const CatalogVersion* const version : catalog_.newest_first()) {
    records.push_back(record_of(*version));
  }
  return records;
}

Result<VersionRecord> Archive::version(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const CatalogVersion* const version = catalog_.try_find(id);
  if (version != nullptr) return record_of(*version);
  return Error(ErrorCode::kNotFound, fmt::format("no version `{}` here", id));
}

VersionRecord Archive::record_of(const CatalogVersion& version) const {
  VersionRecord record;
  record.id = version.id;
  record.labels = catalog_.labels_of(version.id);
  record.parent = version.parent;
  record.origin = version.origin;
  record.created_ms = version.created_ms;
  record.tensors = version.tensors;
  record.bytes = version.bytes;
  record.state = "stored";
  record.pinned = version.pinned;
  return record;
}

std::vector<Head> Archive::heads() {
  const std::lock_guard lock(mutex_);
  std::vector<Head> heads;
  for (const auto& [name, id] : catalog_.heads()) heads.push_back({name, id});
  return heads;
}

std::shared_ptr<void> Archive::on_head_moved(std::function<void()> moved) {
  const std::lock_guard lock(listeners_mutex_);
  const std::uint64_t id = ++last_listener_;
  listeners_.emplace(id, std::move(moved));
  return {nullptr, [weak = weak_from_this(), id](void*) {
            const auto self = weak.lock();
            if (!self) return;
            const std::lock_guard guard(self->listeners_mutex_);
            self->listeners_.erase(id);
          }};
}

void Archive::notify_heads() {
  const std::lock_guard lock(listeners_mutex_);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, moved] : listeners_) ids.push_back(id);
  for (const std::uint64_t id : ids) {
    const auto found = listeners_.find(id);
    if (found == listeners_.end()) continue;
    const auto moved = found->second;  // it may take itself off
    moved();
  }
}

void Archive::move_head(const std::string&, const std::string& name, const std::string& id,
                        std::optional<std::string> expected, Done<CommitReport> done) {
  jobs_.post([self = shared_from_this(), name, id, expected = std::move(expected),
              done = std::move(done)] {
    const auto moved = self->blocking_change(
        [&](Catalog& catalog) { return catalog.move_head(name, id, expected); });
    if (!moved) return done(moved.error());
    const auto record = self->version(id);
    if (!record) return done(record.error());
    const std::string label = record->labels.empty() ? "" : record->labels.back();
    done(CommitReport{{id, label, false}, record->tensors, record->bytes, 0});
  });
}

Result<void> Archive::delete_head(const std::string& name) {
  return blocking_change([&](Catalog& catalog) { return catalog.delete_head(name); });
}

Result<void> Archive::set_label(const std::string& label, const std::string& id) {
  return blocking_change([&](Catalog& catalog) { return catalog.set_label(label, id); });
}

Result<void> Archive::set_pin(const std::string& id, bool pinned) {
  return blocking_change([&](Catalog& catalog) { return catalog.set_pin(id, pinned); });
}

Result<void> Archive::delete_version(const std::string& id) {
  WEFT_TRY_VOID(blocking_change([&](Catalog& catalog) { return catalog.remove(id); }));
  jobs_.post([self = shared_from_this()] {
    const auto collected = self->blocking_collect(unix_ms());
    if (!collected) log_warning("store: {}", collected.error().message());
  });
  return {};
}

Result<std::shared_ptr<const Stored>> Archive::hold(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = stored_.find(id);
  if (found != stored_.end()) return found->second;
  return Error(ErrorCode::kNotFound, fmt::format("no version `{}` here", id));
}

Result<std::shared_ptr<const VersionData>> Archive::open(const std::string& id) {
  WEFT_TRY(auto stored, hold(id));
  return make_version_data(shared_from_this(), std::move(stored));
}

Result<std::shared_ptr<const VersionContent>> Archive::content(const std::string& id) {
  WEFT_TRY(const auto stored, hold(id));
  return stored->shared_content();
}

Result<VersionSource::Blob> Archive::find_blob(const Digest& digest) {
  Place place;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blobs_.find(digest);
    if (found == blobs_.end()) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("no tensor or file `{}` here", digest_text(digest)));
    }
    place = found->second;
  }
  WEFT_TRY(auto data, open(place.id));
  return Blob{std::move(data), place.entry};
}

void Archive::index(const VersionContent& content) {
  std::size_t entry = 0;
  for (const auto& tensor : content.manifest.tensors) {
    blobs_.emplace(tensor.digest, Place{content.id, entry++});
  }
  for (const auto& file : content.manifest.files) {
    blobs_.emplace(file.digest, Place{content.id, entry++});
  }
}

void Archive::unindex(const VersionContent& content) {
  const auto drop = [&](const Digest& digest) {
    auto [begin, end] = blobs_.equal_range(digest);
    while (begin != end) begin = begin->second.id == content.id ? blobs_.erase(begin) : ++begin;
  };
  for (const auto& tensor : content.manifest.tensors) drop(tensor.digest);
  for (const auto& file : content.manifest.files) drop(file.digest);
}

bool Archive::take_object(const Digest& digest) {
  return objects_->with([&](ObjectLedger& ledger) {
    if (!ledger.has(digest)) return false;
    ledger.reference(digest);
    return true;
  });
}

void Archive::release_objects(const std::vector<Digest>& digests) {
  objects_->with([&](ObjectLedger& ledger) {
    for (const Digest& digest : digests) ledger.release(digest);
  });
}

// Readers of one block share a file descriptor: there may be thousands of both.
Result<std::shared_ptr<const File>> Archive::open_object(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  if (const auto found = open_files_.find(digest); found != open_files_.end()) {
    if (auto file = found->second.lock()) return file;
  }
  auto opened = File::open(layout_.object(digest));
  if (!opened) return std::move(opened).error().with_context("a block of the store");
  std::shared_ptr<const File> file = std::make_shared<const File>(*std::move(opened));
  if (open_files_.size() >= sweep_open_files_at_) {
    std::erase_if(open_files_, [](const auto& each) { return each.second.expired(); });
    sweep_open_files_at_ = 2 * open_files_.size() + 64;
  }
  open_files_.insert_or_assign(digest, file);
  return file;
}

Result<void> Archive::blocking_change(const Change& change, std::shared_ptr<const Stored> stored) {
  std::vector<std::shared_ptr<const Stored>> dropped;  // outlive the locks
  bool heads_moved = false;
  {
    const std::lock_guard change_lock(change_mutex_);
    Catalog next = [&] {
      const std::lock_guard lock(mutex_);
      return catalog_;
    }();
    WEFT_TRY_VOID(change(next));
    WEFT_TRY_VOID(disk_.replace(layout_.catalog(), catalog_json(next)));
    const std::lock_guard lock(mutex_);
    heads_moved = next.heads() != catalog_.heads();
    catalog_ = std::move(next);
    if (stored && stored_.emplace(stored->content().id, stored).second) index(stored->content());
    std::erase_if(stored_, [&](auto& each) {
      if (catalog_.try_find(each.first) != nullptr) return false;
      unindex(each.second->content());
      removed_.push_back(each.first);
      dropped.push_back(std::move(each.second));
      return true;
    });
  }
  if (heads_moved) notify_heads();
  return {};
}

Result<void> Archive::blocking_commit(std::shared_ptr<const VersionContent> content,
                                      const std::vector<StagedBlock>& staged,
                                      Catalog::Commit commit) {
  bool is_new = false;
  {
    // What would be refused at the end is refused before anything is written.
    const std::lock_guard lock(mutex_);
    is_new = !stored_.contains(content->id);
    Catalog trial = catalog_;
    WEFT_TRY_VOID(trial.commit(commit));
  }
  // From here on the blocks are needed, whatever is collected.
  const auto stored = std::make_shared<const Stored>(content, objects_);
  for (const StagedBlock& block : staged) {
    if (objects_->with([&](ObjectLedger& ledger) { return ledger.has(block.digest); })) continue;
    const fs::path object = layout_.object(block.digest);
    WEFT_TRY_VOID(disk_.make_dirs(object.parent_path()));
    WEFT_TRY_VOID(disk_.link(block.path, object));
    objects_->with([&](ObjectLedger& ledger) { ledger.add(block.digest); });
    object_bytes_ += file_bytes(object);
  }
  if (is_new) WEFT_TRY_VOID(blocking_write_version(*content));
  // Names of objects, the manifest, all of it: what the catalog is about to name is durable first.
  WEFT_TRY_VOID(disk_.sync_all(layout_.root));
  return blocking_change([&](Catalog& catalog) { return catalog.commit(commit); }, stored);
}

std::shared_ptr<const VersionContent> Archive::find_content(const std::string& id) {
  const auto stored = hold(id);
  return stored ? (*stored)->shared_content() : nullptr;
}

bool Archive::expects_delta(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return expected_deltas_.contains(id);
}

std::shared_ptr<void> Archive::expect_delta(const std::string& id) {
  const std::lock_guard lock(mutex_);
  expected_deltas_.insert(id);
  return {nullptr, [weak = weak_from_this(), id](void*) {
            const auto self = weak.lock();
            if (!self) return;
            {
              const std::lock_guard guard(self->mutex_);
              self->expected_deltas_.erase(self->expected_deltas_.find(id));
            }
            self->notify_heads();
          }};
}

Result<void> Archive::blocking_make_delta(const VersionBlocks& base, const VersionBlocks& target,
                                          const DeltaMakeOptions& options) {
  return deltas_.blocking_make(base, target, options,
                               [this](const std::string& id) { return find_content(id); });
}

Result<void> Archive::blocking_write_version(const VersionContent& content) {
  WEFT_TRY_VOID(disk_.write(layout_.manifest(content.id), content.manifest_json));
  return disk_.write(layout_.blocks(content.id), blocks_bytes(content.blocks));
}

Result<Collected> Archive::blocking_collect(std::int64_t now_ms) {
  Collected collected;
  {
    const std::lock_guard lock(mutex_);
    collected.versions = catalog_.expendable(
        retention_, now_ms, [&](const std::string& id) { return stored_.at(id).use_count() > 1; });
  }
  if (!collected.versions.empty()) {
    WEFT_TRY_VOID(blocking_change([&](Catalog& catalog) -> Result<void> {
      // A head or a pin may have come meanwhile: then it stays.
      std::erase_if(collected.versions,
                    [&](const std::string& id) { return !catalog.remove(id).has_value(); });
      return {};
    }));
  }
  std::vector<std::string> removed;
  {
    const std::lock_guard lock(mutex_);
    removed.swap(removed_);
    std::erase_if(removed, [&](const std::string& id) { return stored_.contains(id); });
  }
  for (const std::string& id : removed) remove_files(id);
  if (!removed.empty()) {
    deltas_.blocking_drop([this](const std::string& id) { return find_content(id); });
  }
  for (const Digest& digest :
       objects_->with([](ObjectLedger& ledger) { return ledger.take_garbage(); })) {
    const fs::path object = layout_.object(digest);
    const std::uint64_t bytes = file_bytes(object);
    if (const auto gone = disk_.remove(object); !gone) {
      log_warning("store: {}", gone.error().message());
      objects_->with([&](ObjectLedger& ledger) { ledger.add(digest); });
      continue;
    }
    object_bytes_ -= bytes;
    ++collected.objects;
    collected.bytes += bytes;
  }
  return collected;
}

void Archive::remove_files(const std::string& id) {
  for (const fs::path& path : {layout_.manifest(id), layout_.blocks(id)}) {
    const auto removed = disk_.remove(path);
    // The next start drops it.
    if (!removed) log_warning("store: {}", removed.error().message());
  }
}

ArchiveStats Archive::stats() {
  ArchiveStats stats;
  stats.objects = objects_->with([](const ObjectLedger& ledger) { return ledger.objects(); });
  stats.bytes = object_bytes_;
  stats.bytes_out = bytes_out_;
  const std::lock_guard lock(mutex_);
  stats.versions = catalog_.versions().size();
  return stats;
}

}  // namespace weft::store
