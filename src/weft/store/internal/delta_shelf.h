#pragma once
// DeltaShelf: the deltas of a store, on disk and on offer. They are made of what the store has, so
// one that is lost is no loss. Thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/result.h"
#include "weft/protocol/version_content.h"
#include "weft/store/internal/disk.h"
#include "weft/store/internal/layout.h"
#include "weft/transfer/delta_maker.h"
#include "weft/transfer/delta_source.h"
#include "weft/transfer/version_blocks.h"

namespace weft::store {

struct DeltaStats {
  std::uint64_t deltas = 0, bytes = 0;  // on offer
};

class DeltaShelf {
 public:
  // The version's content; null where it is not here.
  using Find = std::function<std::shared_ptr<const VersionContent>(const std::string& id)>;

  // `disk` must outlive this.
  DeltaShelf(Layout layout, const Disk& disk) : layout_(std::move(layout)), disk_(disk) {}

  // Reads what is there. What is not whole, or is of a version that is not here, is deleted.
  // Errors: those of the disk. Blocks.
  Result<void> blocking_load(const Find& find);
  // Makes the delta, and offers it once it is durable and if both versions are still here then:
  // packs, sync, index, in this order. Errors: those of blocking_make_delta() and the disk;
  // kNotFound. After one nothing is left on disk. One call at a time. Blocks.
  Result<void> blocking_make(const VersionBlocks& base, const VersionBlocks& target,
                             const DeltaMakeOptions& options, const Find& find);
  // Deletes the deltas from and to versions that are not here any more. Blocks.
  void blocking_drop(const Find& find);

  std::vector<OfferedDeltaPtr> all() const;
  OfferedDeltaPtr try_find(const std::string& id, const std::string& base) const;
  DeltaStats stats() const;

 private:
  using Key = std::pair<std::string, std::string>;  // ids of target and base

  Result<OfferedDeltaPtr> blocking_read(const Key& key, const Find& find) const;
  Result<OfferedDeltaPtr> blocking_write(const VersionBlocks& base, const VersionBlocks& target,
                                         const DeltaMakeOptions& options) const;
  void blocking_remove(const Key& key) const;

  const Layout layout_;
  const Disk& disk_;
  std::mutex change_mutex_;   // what is offered and what is on disk change together
  mutable std::mutex mutex_;  // of what follows; taken after the other
  std::map<Key, OfferedDeltaPtr> offered_;
};

// Reads all of a delta, held against its versions and its packs' digests. Returns how many bytes it
// has. Errors: kCorrupt, kNotFound, kUnsupported. Blocks.
Result<std::uint64_t> blocking_check_delta(const Layout& layout, const VersionContent& base,
                                           const VersionContent& target);

}  // namespace weft::store
