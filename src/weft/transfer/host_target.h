#pragma once
// HostTarget: pulls a version from elsewhere into whoever takes uploads in, a receiver for one.
// What the host has already it takes from itself, since it is told all digests first; only the rest
// is fetched.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/protocol/block_ledger.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/upload_host.h"
#include "weft/transfer/version_blocks.h"
#include "weft/transfer/version_source.h"

namespace weft {

// One pull.
class HostTarget final : public PullTarget {
 public:
  // `host` must outlive this; `owner` is the upload's. `base`: what the host serves, where it can
  // be read, and must outlive this too. A host that patches in place takes only changes of that.
  HostTarget(UploadHost& host, std::string owner, const VersionBlocks* base = nullptr)
      : host_(host), owner_(std::move(owner)), base_(base) {}

  Result<Held> blocking_prepare(const std::string& id, const Manifest& manifest,
                                const VersionDigests& digests) override;
  std::span<std::byte> place(std::size_t entry, std::uint64_t offset_bytes,
                             std::span<std::byte> scratch) override;
  Result<void> blocking_write(std::size_t entry, std::uint64_t offset_bytes,
                              std::span<const std::byte> bytes) override;
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override;
  // Seals the upload.
  Result<void> blocking_finish() override;

  // The upload, once it is prepared.
  std::optional<Epoch> epoch() const { return epoch_; }
  // What the host calls it once it is finished: another id than was pulled where files that the
  // version lacks are the host's own, or tensors were converted.
  const std::string& sealed_id() const { return sealed_id_; }

 private:
  // A block of which one pack has the first part and the next the rest.
  struct Half {
    std::vector<std::byte> bytes;
    std::uint64_t filled_bytes = 0;
  };

  Result<void> blocking_settle(const BlockPlace& place, std::span<const std::byte> block);
  Result<std::vector<std::byte>> blocking_changes(const BlockPlace& place,
                                                  std::span<const std::byte> block);
  Result<void> blocking_hand_over(const BlockPlace& place, Encoding encoding,
                                  std::span<const std::byte> payload,
                                  const std::optional<Digest>& value);

  UploadHost& host_;
  const std::string owner_;
  const VersionBlocks* const base_;
  std::vector<std::uint64_t> sizes_bytes_;  // [entries]
  // Where the host takes only changes: the version, and how it meets the base.
  std::shared_ptr<const VersionContent> content_;
  std::optional<DeltaPair> pair_;
  std::optional<Epoch> epoch_;
  std::string sealed_id_;
  mutable std::mutex mutex_;
  mutable std::map<BlockPlace, Half> halves_;  // with mutex_
};

// Pulls version `id` ("blake3:...") of `source` into `host` as an upload of `owner`, sealed and
// ready to commit: as what changed since the version that a head of `own` points to, where `own` is
// given and the source offers that, else in full, which goes on with what a delta that went wrong
// has brought. An upload that fails is dropped. Blocks. Errors: blocking_pull()'s and the host's.
struct PulledUpload {
  Epoch epoch = 0;
  std::string id;             // as sealed
  std::size_t deltas = 0;     // that it came by; 0: in full
  std::string delta_failure;  // why not by deltas that were offered; logged too
};
Result<PulledUpload> blocking_pull_into(UploadHost& host, const std::string& owner,
                                        http::Client& source, const std::string& id,
                                        VersionSource* own = nullptr);

}  // namespace weft
