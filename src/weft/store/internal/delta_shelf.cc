#include "weft/store/internal/delta_shelf.h"

#include <optional>
#include <set>

#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/transfer/delta_object.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = 1ull << 30;

class DeltaOnDisk final : public OfferedDelta {
 public:
  DeltaOnDisk(const Layout& layout, std::string id, std::string base, DeltaIndex index,
              std::string index_bytes)
      : layout_(layout),
        id_(std::move(id)),
        base_(std::move(base)),
        index_(std::move(index)),
        index_bytes_(std::move(index_bytes)) {}

  const DeltaIndex& index() const override { return index_; }
  const std::string& index_bytes() const override { return index_bytes_; }
  Result<std::shared_ptr<const File>> open_pack(std::size_t pack) const override {
    WEFT_TRY(File file, File::open(layout_.delta_pack(id_, base_, pack)));
    if (file.size_bytes() == index_.packs[pack].size_bytes) {
      return std::make_shared<const File>(std::move(file));
    }
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}: {} bytes, expected {}", file.path().string(), file.size_bytes(),
                             index_.packs[pack].size_bytes));
  }

 private:
  const Layout layout_;
  const std::string id_, base_;
  const DeltaIndex index_;
  const std::string index_bytes_;
};

// The index of a delta that is on disk, held against its versions.
Result<std::shared_ptr<const DeltaOnDisk>> blocking_read_delta(const Layout& layout,
                                                               const VersionContent& base,
                                                               const VersionContent& target) {
  WEFT_TRY(std::string bytes,
           blocking_read_file(layout.delta_index(target.id, base.id), kMaxIndexBytes));
  WEFT_TRY(DeltaIndex index, parse_delta_index(std::as_bytes(std::span(bytes))));
  WEFT_TRY_VOID(check_delta_index(DeltaPair(base, target), index));
  auto delta = std::make_shared<const DeltaOnDisk>(layout, target.id, base.id, std::move(index),
                                                   std::move(bytes));
  for (std::size_t pack = 0; pack < delta->index().packs.size(); ++pack) {
    WEFT_TRY_VOID(delta->open_pack(pack));
  }
  return delta;
}

Result<Digest> blocking_hash(const File& file) {
  Hasher hasher;
  std::vector<std::byte> memory(static_cast<std::size_t>(file.size_bytes()));
  WEFT_TRY_VOID(file.blocking_read_at(0, memory));
  hasher.update(memory);
  return hasher.finish();
}

}  // namespace

Result<void> DeltaShelf::blocking_load(const Find& find) {
  WEFT_TRY_VOID(disk_.make_dirs(layout_.deltas()));
  std::set<fs::path> wanted;
  for (const fs::path& path : names_in(layout_.deltas())) {
    const auto ids = try_parse_delta_name(path);
    if (!ids) continue;
    const auto target = find(ids->first), base = find(ids->second);
    if (!target || !base) continue;
    const auto delta = blocking_read_delta(layout_, *base, *target);
    if (!delta) {
      log_warning("store: a delta is not whole and is dropped: {}", delta.error().message());
      continue;
    }
    wanted.insert(path);
    for (std::size_t pack = 0; pack < (*delta)->index().packs.size(); ++pack) {
      wanted.insert(layout_.delta_pack(ids->first, ids->second, pack));
    }
    const std::lock_guard lock(mutex_);
    offered_.insert_or_assign(*ids, *delta);
  }
  for (const fs::path& path : names_in(layout_.deltas())) {
    if (!wanted.contains(path)) WEFT_TRY_VOID(disk_.remove(path));
  }
  return {};
}

Result<void> DeltaShelf::blocking_make(const VersionBlocks& base, const VersionBlocks& target,
                                       const DeltaMakeOptions& options, const Find& find) {
  const Key key(target.content().id, base.content().id);
  auto delta = blocking_write(base, target, options);
  if (delta) {
    const std::lock_guard change_lock(change_mutex_);
    Result<void> written = Error(ErrorCode::kNotFound, "one of the versions is not here any more");
    if (find(key.first) && find(key.second)) {
      written = disk_.replace(layout_.delta_index(key.first, key.second), (*delta)->index_bytes());
    }
    if (written) {
      const std::lock_guard lock(mutex_);
      offered_.insert_or_assign(key, *delta);
      return {};
    }
    delta = written.error();
  }
  blocking_remove(key);
  return delta.error();
}

// The packs, synced.
Result<OfferedDeltaPtr> DeltaShelf::blocking_write(const VersionBlocks& base,
                                                   const VersionBlocks& target,
                                                   const DeltaMakeOptions& options) const {
  const std::string& from = base.content().id;
  const std::string& to = target.content().id;
  std::optional<NewFile> file;
  std::size_t packs = 0;
  const auto sink = [&](std::size_t pack, std::span<const std::byte> payload) -> Result<void> {
    if (pack == packs) {
      WEFT_TRY(file, disk_.create(layout_.delta_pack(to, from, pack)));
      ++packs;
    }
    return file->append(payload);
  };
  WEFT_TRY(DeltaIndex index, blocking_make_delta(base, target, sink, options));
  file.reset();
  WEFT_TRY_VOID(disk_.sync_all(layout_.deltas()));
  std::string bytes = encode_delta_index(index);
  return OfferedDeltaPtr(
      std::make_shared<const DeltaOnDisk>(layout_, to, from, std::move(index), std::move(bytes)));
}

void DeltaShelf::blocking_drop(const Find& find) {
  const std::lock_guard change_lock(change_mutex_);
  std::vector<Key> dropped;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(offered_, [&](const auto& each) {
      if (find(each.first.first) && find(each.first.second)) return false;
      dropped.push_back(each.first);
      return true;
    });
  }
  for (const Key& key : dropped) blocking_remove(key);
}

// The index first: without it the packs are nobody's.
void DeltaShelf::blocking_remove(const Key& key) const {
  const auto remove = [&](const fs::path& path) {
    // The next start drops it.
    if (const auto removed = disk_.remove(path); !removed) {
      log_warning("store: {}", removed.error().message());
    }
  };
  remove(layout_.delta_index(key.first, key.second));
  std::error_code failed;
  for (std::size_t pack = 0;; ++pack) {
    const fs::path path = layout_.delta_pack(key.first, key.second, pack);
    if (!fs::exists(path, failed)) break;
    remove(path);
  }
}

std::vector<OfferedDeltaPtr> DeltaShelf::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<OfferedDeltaPtr> all;
  for (const auto& [key, delta] : offered_) all.push_back(delta);
  return all;
}

OfferedDeltaPtr DeltaShelf::try_find(const std::string& id, const std::string& base) const {
  const std::lock_guard lock(mutex_);
  const auto found = offered_.find({id, base});
  return found == offered_.end() ? nullptr : found->second;
}

DeltaStats DeltaShelf::stats() const {
  const std::lock_guard lock(mutex_);
  DeltaStats stats;
  stats.deltas = offered_.size();
  for (const auto& [key, delta] : offered_) stats.bytes += delta->total_bytes();
  return stats;
}

Result<std::uint64_t> blocking_check_delta(const Layout& layout, const VersionContent& base,
                                           const VersionContent& target) {
  WEFT_TRY(const auto delta, blocking_read_delta(layout, base, target));
  for (std::size_t pack = 0; pack < delta->index().packs.size(); ++pack) {
    WEFT_TRY(const auto file, delta->open_pack(pack));
    WEFT_TRY(const Digest digest, blocking_hash(*file));
    if (digest == delta->index().packs[pack].digest) continue;
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}: its bytes are {}", file->path().string(), digest_text(digest)));
  }
  return delta->total_bytes();
}

}  // namespace weft::store
