#pragma once
// Archive: the committed versions of a store, on disk and in memory. Thread-safe. Callbacks run on
// any thread, without a lock.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/base/guarded.h"
#include "weft/base/job_thread.h"
#include "weft/protocol/catalog.h"
#include "weft/store/internal/delta_shelf.h"
#include "weft/store/internal/disk.h"
#include "weft/store/internal/layout.h"
#include "weft/transfer/version_source.h"

namespace weft::store {

// The clock of records.
std::int64_t unix_ms();

// A version that is kept on disk while somebody holds this: the archive, a reader, an upload whose
// base it is. Immutable.
class Stored {
 public:
  Stored(std::shared_ptr<const VersionContent> content,
         std::shared_ptr<Guarded<ObjectLedger>> objects);
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;
  ~Stored();

  const VersionContent& content() const { return *content_; }
  const std::shared_ptr<const VersionContent>& shared_content() const { return content_; }

 private:
  std::shared_ptr<const VersionContent> content_;
  std::shared_ptr<Guarded<ObjectLedger>> objects_;
};

struct Collected {
  std::vector<std::string> versions;  // that were let go
  std::uint64_t objects = 0, bytes = 0;
};

struct ArchiveStats {
  std::uint64_t versions = 0, objects = 0;
  std::uint64_t bytes = 0;      // of the objects on disk
  std::uint64_t bytes_out = 0;  // of versions, handed out to be sent
};

class Archive final : public VersionSource, public std::enable_shared_from_this<Archive> {
 public:
  // `jobs` and `disk` must outlive this; all that deletes or commits runs on `jobs`.
  Archive(Layout layout, const Disk& disk, JobThread& jobs, Retention retention);
  // Reads what is there; what is malformed is set aside and logged. Errors: those of the disk.
  Result<void> blocking_load();

  std::vector<VersionRecord> versions() override;
  Result<VersionRecord> version(const std::string& id) override;
  std::vector<Head> heads() override;
  std::shared_ptr<void> on_head_moved(std::function<void()> moved) override;
  void move_head(const std::string& owner, const std::string& name, const std::string& id,
                 std::optional<std::string> expected, Done<CommitReport> done) override;
  // These write one small file before they return, and wait for its fsync.
  Result<void> delete_head(const std::string& name) override;
  Result<void> set_label(const std::string& label, const std::string& id) override;
  Result<void> set_pin(const std::string& id, bool pinned) override;
  Result<void> delete_version(const std::string& id) override;
  Result<std::shared_ptr<const VersionData>> open(const std::string& id) override;
  Result<std::shared_ptr<const VersionContent>> content(const std::string& id) override;
  Result<Blob> find_blob(const Digest& digest) override;
  std::vector<OfferedDeltaPtr> deltas() override { return deltas_.all(); }
  OfferedDeltaPtr try_find_delta(const std::string& id, const std::string& base) override {
    return deltas_.try_find(id, base);
  }
  bool expects_delta(const std::string& id) override;

  // For uploads. `hold`: kNotFound when it is not here.
  Result<std::shared_ptr<const Stored>> hold(const std::string& id);
  // Where the block is on disk, counts the caller as one who needs it until release_objects().
  bool take_object(const Digest& digest);
  void release_objects(const std::vector<Digest>& digests);
  // An object that is on disk. Errors: as File::open.
  Result<std::shared_ptr<const File>> open_object(const Digest& digest);

  struct StagedBlock {
    Digest digest;
    std::filesystem::path path;  // its bytes, synced
  };
  // Makes a version of synced blocks and objects, and records it. Only on the job thread. All or
  // nothing: after an error nothing is recorded, and the same call may be made again.
  Result<void> blocking_commit(std::shared_ptr<const VersionContent> content,
                               const std::vector<StagedBlock>& staged, Catalog::Commit commit);
  // Lets go what retention does not keep, deletes what nobody needs. Only on the job thread.
  Result<Collected> blocking_collect(std::int64_t now_ms);

  // expects_delta() of it until what is returned is dropped.
  std::shared_ptr<void> expect_delta(const std::string& id);
  // As DeltaShelf. Only on one thread, which is not the job thread.
  Result<void> blocking_make_delta(const VersionBlocks& base, const VersionBlocks& target,
                                   const DeltaMakeOptions& options);
  DeltaStats delta_stats() const { return deltas_.stats(); }

  const Layout& layout() const { return layout_; }
  ArchiveStats stats();
  void count_sent(std::uint64_t bytes) { bytes_out_ += bytes; }

 private:
  using Change = std::function<Result<void>(Catalog&)>;

  Result<Catalog> blocking_load_catalog();
  Result<void> blocking_load_objects();
  Result<void> blocking_load_versions(Catalog& catalog);
  void blocking_restore(Catalog& catalog);
  void blocking_drop_unlisted();
  void set_aside(const std::filesystem::path& path, const Error& why);
  Result<void> blocking_write_version(const VersionContent& content);
  // Changes a copy of the catalog, writes it down, then lets it count. `stored`: a version that the
  // change records.
  Result<void> blocking_change(const Change& change,
                               std::shared_ptr<const Stored> stored = nullptr);
  void notify_heads();
  void remove_files(const std::string& id);
  VersionRecord record_of(const CatalogVersion& version) const;  // with the lock held
  void index(const VersionContent& content);                     // with the lock held
  void unindex(const VersionContent& content);                   // with the lock held
  // Null where it is not here.
  std::shared_ptr<const VersionContent> find_content(const std::string& id);

  const Layout layout_;
  const Disk& disk_;
  JobThread& jobs_;
  const Retention retention_;
  DeltaShelf deltas_;
  const std::shared_ptr<Guarded<ObjectLedger>> objects_;
  std::atomic<std::uint64_t> object_bytes_ = 0, bytes_out_ = 0;

  std::mutex change_mutex_;  // one change of the catalog on disk at a time; taken before mutex_
  std::mutex mutex_;         // of what follows
  Catalog catalog_;
  std::map<std::string, std::shared_ptr<const Stored>> stored_;  // by id
  struct Place {
    std::string id;
    std::size_t entry;
  };
  std::multimap<Digest, Place> blobs_;
  std::vector<std::string> removed_;  // whose files are still there
  std::multiset<std::string> expected_deltas_;
  std::map<Digest, std::weak_ptr<const File>> open_files_;
  std::size_t sweep_open_files_at_ = 0;

  std::recursive_mutex listeners_mutex_;  // held while they are called
  std::map<std::uint64_t, std::function<void()>> listeners_;
  std::uint64_t last_listener_ = 0;
};

}  // namespace weft::store
