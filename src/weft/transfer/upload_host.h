#pragma once
// UploadHost: what the push routes need of whoever takes uploads in. The receiver of an engine is
// one (one upload at a time, into its second set), the store is another (many, onto disk).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/codec/block_codec.h"
#include "weft/digest/digest.h"
#include "weft/protocol/block_frame.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/skeleton.h"
#include "weft/protocol/update_machine.h"
#include "weft/tensor/on_update.h"
#include "weft/tensor/weight_set.h"

namespace weft {

struct UploadProgress {
  Epoch epoch = 0;
  UpdateState state = UpdateState::kIdle;
  std::vector<BlockLedger::Run> missing;  // by entry
  std::uint64_t total_bytes = 0;
  std::uint64_t verified_bytes = 0;
  std::vector<Encoding> encodings;  // that frames may have
  bool patch_mode = false;  // no second set: what changes is kept as patches until the commit
};

// A sealed upload.
struct SealedVersion {
  std::string id;
  bool converted = false;
  // Patch mode: how long the commit will hold up decoding. A second set takes over in a time that
  // does not depend on its size.
  std::optional<std::uint64_t> predicted_stall_us{};
};

struct CommitRequest {
  std::optional<std::string> label;     // none: the label stays
  std::optional<std::string> head;      // moves it to the version; a receiver has `main` alone
  std::optional<std::string> if_match;  // the id the head must have now; else kPreconditionFailed
  std::string parent, origin;           // of the record; "" where not given
  std::optional<OnUpdate> on_update;    // receiver; none: its own
};

struct CommitReport {
  VersionName version;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stall_us = 0;  // 0 for a store
};

// One writer's hold on one block. Dropped without settle(), the block is open again. One thread.
class BlockWriter {
 public:
  virtual ~BlockWriter() = default;

  // Where the next bytes of the payload go; empty when all are there.
  virtual std::span<std::byte> buffer() = 0;
  // `size_bytes` came to the front of the last buffer().
  virtual Result<void> filled(std::size_t size_bytes) = 0;
  virtual std::uint64_t left_bytes() const = 0;
  // kYours, or what the block was instead: then its bytes are read and dropped.
  virtual BlockLedger::Claim found() const = 0;
  // Takes the block as verified. Requires: all bytes are there. Errors: kConflict when the upload
  // is over; kCorrupt, naming entry and block, when the decoded bytes are not `expected` or not
  // what was announced. `expected`: none where the body brings no digests.
  virtual Result<void> settle(const std::optional<Digest>& expected) = 0;
};

// Thread-safe. Callbacks are called once, from any thread. Nothing here blocks.
class UploadHost {
 public:
  virtual ~UploadHost() = default;

  template <typename T>
  using Done = std::function<void(Result<T>)>;

  virtual void open_upload(const std::string& owner, UploadOffer offer,
                           Done<UploadProgress> done) = 0;
  // A body that is a whole safetensors file: open, then plan when its header is read; the entries
  // are then the header's tensors in the order of their data.
  virtual Result<Epoch> open_body(const std::string& owner) = 0;
  virtual Result<void> plan_body(Epoch epoch, std::vector<TensorSpec> tensors) = 0;
  virtual Result<UploadProgress> progress(const std::string& owner, Epoch epoch) = 0;
  // May `owner` use `epoch`? Renews its lease.
  virtual Result<void> check(const std::string& owner, Epoch epoch) = 0;
  // Claims the block for one writer. Errors: kInvalidArgument for one outside the grid, a payload
  // length that its encoding cannot have, an encoding that is not taken; kConflict, kOverloaded.
  virtual Result<std::unique_ptr<BlockWriter>> claim(Epoch epoch, std::uint64_t entry,
                                                     std::uint64_t block, Encoding encoding,
                                                     std::uint64_t payload_bytes) = 0;
  // Bytes came: renews the lease.
  virtual Result<void> touch(Epoch epoch) = 0;
  // The staging cannot be completed any more: drops it.
  virtual void fail(Epoch epoch, const Error& error) = 0;
  virtual Result<void> abort(const std::string& owner, Epoch epoch) = 0;
  virtual void seal(const std::string& owner, Epoch epoch, Done<SealedVersion> done) = 0;
  virtual void commit(const std::string& owner, Epoch epoch, CommitRequest request,
                      Done<CommitReport> done) = 0;
  // Remembers how to end a connection that brings bytes, until the returned guard is dropped.
  virtual std::shared_ptr<void> add_connection(std::function<void()> close) = 0;

  struct Status {
    UpdateState state = UpdateState::kIdle;
    std::string owner;
    Epoch epoch = 0;
    std::chrono::milliseconds lease_left{0};
    std::optional<VersionName> serving;  // none on a store
  };
  virtual Status status() = 0;

  // A call of `owner` offered what can never be taken, so that what it does next may not count on
  // it: closes the update that `owner` has open or staged, where there is one.
  virtual void refuse(const std::string& /*owner*/, const Error& /*error*/) {}
  // A call was answered with this error: for the metrics.
  virtual void refused(const Error& error) { static_cast<void>(error); }
  // Runs what takes milliseconds; a host that has a thread for it does so there.
  virtual void post(std::function<void()> job) { job(); }
};

}  // namespace weft
