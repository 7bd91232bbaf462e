#pragma once
// Core: the receiver's transaction without HTTP. It gives the update machine its lock, its clock,
// the two weight sets and a thread for what blocks. Thread-safe; callbacks run on any thread,
// without the lock.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/job_thread.h"
#include "weft/format/manifest.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/skeleton.h"
#include "weft/protocol/update_machine.h"
#include "weft/transfer/internal/block_fill.h"
#include "weft/transfer/receiver.h"
#include "weft/transfer/upload_host.h"

namespace weft::internal {

// A version whose bytes are all known. Immutable.
struct Content {
  std::string id;
  std::string manifest;
  bool converted = false;
  std::vector<std::vector<Digest>> blocks;  // [layout tensors][blocks]; empty when converted
};

// One staging. The plan and the announced digests are immutable, the rest is the core's.
struct Upload {
  Upload(Epoch epoch_, UploadPlan plan_, std::vector<std::uint64_t> sizes_bytes_,
         std::vector<std::vector<Digest>> announced_, std::shared_ptr<WeightSet> set_)
      : epoch(epoch_),
        plan(std::move(plan_)),
        sizes_bytes(std::move(sizes_bytes_)),
        announced(std::move(announced_)),
        set(std::move(set_)),
        ledger(sizes_bytes) {}

  const Epoch epoch;
  const UploadPlan plan;
  const std::vector<std::uint64_t> sizes_bytes;  // of the tensors as sent
  const std::vector<std::vector<Digest>>
      announced;  // [tensors][blocks]; a tensor's list may be empty
  const std::shared_ptr<WeightSet> set;
  BlockLedger ledger;
  std::shared_ptr<const Content> content;  // once sealed
};

class Core final : public UploadHost, public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<WeightSet> serving, std::shared_ptr<WeightSet> staging,
       std::shared_ptr<const Content> served, WeightTarget& target, ReceiverOptions options);
  // Refuses every call from now on and stops the thread.
  void blocking_shutdown();

  void open_upload(const std::string& owner, UploadOffer offer, Done<UploadProgress> done) override;
  Result<Epoch> open_body(const std::string& owner) override;
  Result<void> plan_body(Epoch epoch, std::vector<TensorSpec> tensors) override;
  Result<UploadProgress> progress(const std::string& owner, Epoch epoch) override;
  Result<void> check(const std::string& owner, Epoch epoch) override;
  Result<std::unique_ptr<BlockWriter>> claim(Epoch epoch, std::uint64_t entry, std::uint64_t block,
                                             Encoding encoding,
                                             std::uint64_t payload_bytes) override;
  Result<void> touch(Epoch epoch) override;
  void fail(Epoch epoch, const Error& error) override;
  Result<void> abort(const std::string& owner, Epoch epoch) override;
  void seal(const std::string& owner, Epoch epoch, Done<SealedVersion> done) override;
  // As finish(), if `epoch` is what it would commit, or what it did.
  void commit(const std::string& owner, Epoch epoch, CommitRequest request,
              Done<CommitReport> done) override;
  // A staging that is refused because connections of the one before are still open ends them: they
  // are fenced, and some may never end by themselves.
  std::shared_ptr<void> add_connection(std::function<void()> close) override;
  Status status() override;
  void post(std::function<void()> job) override { blocking_.post(std::move(job)); }

  Result<void> start(const std::string& owner);
  void update(const std::string& owner, std::optional<std::string> path, Done<void> done);
  void refuse(const std::string& owner, const Error& error);
  void finish(const std::string& owner, std::optional<std::string> label, Done<CommitReport> done);
  Result<void> set_label(const std::string& label);
  void checksums(std::function<void(std::vector<std::pair<std::string, std::string>>)> done);

  std::shared_ptr<const Content> served();
  VersionName current() const { return target_.current(); }

 private:
  friend class SetWriter;

  struct PathJob {
    std::string owner, path;
    std::vector<Done<void>> waiting;
  };

  Result<UploadProgress> blocking_open_upload(const std::string& owner, UploadOffer offer);
  Result<std::unique_ptr<class SetWriter>> claim_of(const std::shared_ptr<Upload>& upload,
                                                    std::uint64_t entry, std::uint64_t block);
  BlockFill make_fill(const Upload& upload, std::uint64_t tensor, std::uint64_t block,
                      BlockLedger::Claim found) const;
  // Passes on how a staging began; ends what kept it from beginning.
  template <typename T>
  Result<T> begun(Result<T> result);
  void run_finish(const std::string& owner, std::optional<Epoch> epoch,
                  std::optional<std::string> label, Done<CommitReport> done);
  void take_over(std::unique_lock<std::mutex> lock, const std::optional<std::string>& label);
  void copy_served_blocks(const std::shared_ptr<Upload>& upload);
  Result<std::shared_ptr<const Content>> blocking_seal(Epoch epoch);
  void update_from(const std::string& owner, const std::string& path, Done<void> done);
  Result<void> blocking_stage_path(Epoch epoch, const std::filesystem::path& path);
  // `read` fills all of what it is given; `scratch` takes what cannot go straight to its place.
  Result<void> blocking_stage_tensor(Upload& upload, std::size_t index,
                                     std::vector<std::byte>& scratch,
                                     const std::function<Result<void>(std::span<std::byte>)>& read);
  void on_committed(const VersionName& version, const WeightTarget::Committed& committed);
  Result<void> settle(Upload& upload, std::uint64_t tensor, std::uint64_t block,
                      const Digest* digest);
  // With the lock held.
  Result<std::shared_ptr<Upload>> upload_of(Epoch epoch) const;
  UploadProgress progress_of(const Upload& upload);
  Result<void> staging_is_free() const;
  VersionName rename(const std::optional<std::string>& label);

  WeightTarget& target_;
  const ReceiverOptions options_;
  const std::shared_ptr<const WeightLayout> layout_;

  std::mutex mutex_;  // of what follows
  UpdateMachine machine_;
  std::shared_ptr<WeightSet> serving_, staging_;
  const WeightSet* being_read_ = nullptr;  // by checksums
  std::shared_ptr<const Content> served_;
  std::shared_ptr<Upload> upload_;  // of machine_'s epoch, or of the last one
  std::vector<Done<CommitReport>> committing_;
  CommitReport last_commit_;
  std::optional<PathJob> path_job_;
  std::map<std::uint64_t, std::function<void()>> connections_;
  std::uint64_t last_connection_ = 0;

  JobThread blocking_{"weft-blk-0", JobThread::Rest::kDrop};
};

// Hashes what a set holds.
std::shared_ptr<const Content> blocking_hash_content(const WeightSet& set, bool converted);

}  // namespace weft::internal
