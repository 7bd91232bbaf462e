#pragma once
// VersionSource: what the pull routes need of whoever holds versions. A receiver is one (what it
// serves and what it served before), the store is another.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/http/body.h"
#include "weft/protocol/version_content.h"
#include "weft/transfer/delta_source.h"
#include "weft/transfer/upload_host.h"

namespace weft {

struct VersionRecord {
  std::string id;
  std::vector<std::string> labels;
  std::string parent, origin;   // "" where nobody said
  std::int64_t created_ms = 0;  // Unix time
  bool converted = false;
  std::uint64_t tensors = 0, bytes = 0;  // bytes: of the entries
  std::string state;                     // "serving", "retired", "staged"; "stored" on a store
  bool pinned = false;
};

struct Head {
  std::string name, id;
};

// A version's bytes, held while this lives (but see on_revoke). Thread-safe.
class VersionData {
 public:
  virtual ~VersionData() = default;

  virtual const VersionContent& content() const = 0;
  // Appends the parts that hold bytes [offset, offset + size) of an entry. Requires: inside it.
  // Blocks for no more than the opening of files. Errors: kCorrupt, kNotFound when a file is gone.
  virtual Result<void> append(std::size_t entry, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes,
                              std::vector<http::BodyPart>& parts) const = 0;
  // `revoked` is called once, from any thread, when the bytes are about to be overwritten: whoever
  // still sends them must stop and drop this. Until the guard is dropped.
  virtual std::shared_ptr<void> on_revoke(std::function<void()> revoked) const = 0;
};

// Thread-safe; calls may read files but nothing larger than a manifest.
class VersionSource {
 public:
  virtual ~VersionSource() = default;
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  virtual std::vector<VersionRecord> versions() = 0;  // newest first
  virtual Result<VersionRecord> version(const std::string& id) = 0;
  virtual std::vector<Head> heads() = 0;
  // `moved` is called, from any thread, each time some head has moved; until the guard is dropped.
  virtual std::shared_ptr<void> on_head_moved(std::function<void()> moved) = 0;
  // `expected`: the id the head must have now ("": it must not exist); none: whatever it has.
  // kPreconditionFailed otherwise. kNotFound for a version that is not here. On a receiver this is
  // a rollback.
  virtual void move_head(const std::string& owner, const std::string& name, const std::string& id,
                         std::optional<std::string> expected, Done<CommitReport> done) = 0;
  virtual Result<void> delete_head(const std::string& name) = 0;
  virtual Result<void> set_label(const std::string& label, const std::string& id) = 0;
  virtual Result<void> set_pin(const std::string& id, bool pinned) = 0;
  virtual Result<void> delete_version(const std::string& id) = 0;

  // kNotFound; kConflict for a converted version, whose bytes are not the sender's.
  virtual Result<std::shared_ptr<const VersionData>> open(const std::string& id) = 0;
  // The same for this process's own use, also where bytes are not given out because they are
  // patched in place: a commit waits until the data is dropped. kOverloaded where it is not the
  // time.
  virtual Result<std::shared_ptr<const VersionData>> open_own(const std::string& id) {
    return open(id);
  }
  // The manifest alone: a converted version has one too.
  virtual Result<std::shared_ptr<const VersionContent>> content(const std::string& id) = 0;
  struct Blob {
    std::shared_ptr<const VersionData> data;  // some version that has it
    std::size_t entry;
  };
  virtual Result<Blob> find_blob(const Digest& digest) = 0;

  // What is on offer as what changed since another version.
  virtual std::vector<OfferedDeltaPtr> deltas() { return {}; }
  // Is one to this version being made? When it is over on_head_moved() says so, too.
  virtual bool expects_delta(const std::string& /*id*/) { return false; }
  // Null where there is none.
  virtual OfferedDeltaPtr try_find_delta(const std::string& /*id*/, const std::string& /*base*/) {
    return nullptr;
  }
};

}  // namespace weft
