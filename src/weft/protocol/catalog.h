#pragma once
// What a store knows of its versions and decides about them: records, labels and heads (Catalog),
// and which objects, the files of blocks, nobody needs any more (ObjectLedger). Pure: no clock, no
// disk, no threads. One thread.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"

namespace weft {

// The record of one version.
struct CatalogVersion {
  std::string id;  // "blake3:..."
  std::string parent, origin;
  // Counts the commits of this catalog: the order of versions, which a clock that jumps cannot
  // change. Given by the catalog.
  std::uint64_t sequence = 0;
  std::int64_t created_ms = 0;  // Unix time of the last commit
  bool pinned = false;
  std::uint64_t tensors = 0, bytes = 0;

  bool operator==(const CatalogVersion&) const = default;
};

// Which versions stay. One that any of the rules keeps stays; with no rule all do.
struct Retention {
  std::optional<std::uint64_t> keep_last;  // so many, the newest
  std::optional<std::chrono::milliseconds> keep_younger;
};

// Records, labels and heads. A value: whoever must write a change down before it counts changes a
// copy. A call that fails changes nothing.
class Catalog {
 public:
  struct Commit {
    CatalogVersion version;
    std::optional<std::string> label, head;
    std::optional<std::string> if_match;  // as `expected` of move_head()
  };
  // Records the version as the newest and moves label and head to it, all or nothing. One that is
  // here already stays pinned, and keeps its parent and origin where the commit names none.
  Result<void> commit(Commit commit);
  // `expected`: the id that the head must have now ("": it must not exist). Errors: kNotFound for a
  // version that is not here, kInvalidArgument for what is no name, kPreconditionFailed with the
  // current id.
  Result<void> move_head(const std::string& name, const std::string& id,
                         const std::optional<std::string>& expected);
  Result<void> delete_head(const std::string& name);  // Errors: kNotFound
  Result<void> set_label(const std::string& label, const std::string& id);
  Result<void> set_pin(const std::string& id, bool pinned);
  // Its labels go with it. Errors: kNotFound; kConflict, naming it, while a head or a pin holds it.
  Result<void> remove(const std::string& id);
  // For a store that reads its disk at the start. restore(): as it was recorded. drop(): the
  // version turned out to be lost, whatever holds it; its labels and heads go with it.
  void restore(CatalogVersion version);
  void drop(const std::string& id);

  // The versions that `retention` lets go, oldest first. Never the newest one, nor one with a head
  // or a pin, nor one that is `held`: by a reader, or by an upload as its base. A label does not
  // hold: most versions have one.
  std::vector<std::string> expendable(const Retention& retention, std::int64_t now_ms,
                                      const std::function<bool(const std::string&)>& held) const;

  const CatalogVersion* try_find(const std::string& id) const;
  std::vector<const CatalogVersion*> newest_first() const;
  std::vector<std::string> labels_of(const std::string& id) const;                     // sorted
  const std::map<std::string, CatalogVersion>& versions() const { return versions_; }  // by id
  const std::map<std::string, std::string>& labels() const { return labels_; }         // to ids
  const std::map<std::string, std::string>& heads() const { return heads_; }           // to ids

  bool operator==(const Catalog&) const = default;

 private:
  Result<CatalogVersion*> find(const std::string& id);
  Result<void> check_head(const std::string& name,
                          const std::optional<std::string>& expected) const;

  std::map<std::string, CatalogVersion> versions_;
  std::map<std::string, std::string> labels_;
  std::map<std::string, std::string> heads_;
  std::uint64_t last_sequence_ = 0;
};

// 1 to 128 of letters, digits, '.', '_' and '-'.
bool is_head_name(std::string_view name);

// Which blocks are on disk and how many need each. Whoever needs one says so before it counts on
// it: versions, and uploads that found a block there and do not ask for it.
class ObjectLedger {
 public:
  // The object is on disk. Again: fine.
  void add(const Digest& digest);
  // It turned out not to be on disk, or not to be what its name says.
  void lose(const Digest& digest);
  bool has(const Digest& digest) const;
  // Counts one more who needs it, on disk or not; release() takes that back.
  void reference(const Digest& digest);
  // Requires: as many reference() before.
  void release(const Digest& digest);
  // What is on disk and nobody needs. The caller deletes these, and they are not there any more
  // from this call on: an upload that brings such a block brings it anew.
  std::vector<Digest> take_garbage();

  std::size_t objects() const { return on_disk_; }

 private:
  struct Object {
    bool on_disk = false;
    std::uint64_t references = 0;
  };
  struct ByFirstBytes {  // a digest is as good as random
    std::size_t operator()(const Digest& digest) const;
  };
  void forget_if_unused(const Digest& digest);

  std::unordered_map<Digest, Object, ByFirstBytes> objects_;
  std::size_t on_disk_ = 0;
};

}  // namespace weft
