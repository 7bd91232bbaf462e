#pragma once
// Core: the receiver without HTTP. It gives the receiver machine, which decides everything, its
// lock, its clock, the memory of the two weight sets and a thread for what blocks. Thread-safe;
// callbacks run on any thread, without the lock.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/job_thread.h"
#include "weft/codec/block_codec.h"
#include "weft/digest/hash_helper.h"
#include "weft/protocol/receiver_machine.h"
#include "weft/transfer/receiver.h"
#include "weft/transfer/upload_host.h"
#include "weft/transfer/version_source.h"

namespace weft::internal {

// The one head that a receiver has: what it serves.
inline constexpr const char* kServedHead = "main";
// kNotFound.
Error no_head(std::string_view name);

// What is kept of a block in patch mode.
struct Patch {
  BlockPlace place;
  std::shared_ptr<const void> memory;  // that `parsed` looks into
  SparsePatch parsed;
  std::vector<std::byte> undo;  // as long as the new values; filled by the commit
};

// A staging, and what it has in memory beside its set.
struct Upload {
  explicit Upload(std::shared_ptr<Staging> staging_);

  const std::shared_ptr<Staging> staging;
  const Instant opened_at;
  std::vector<std::string> files;  // [files of the plan]; each block has one writer
  // The core's.
  std::vector<Patch> patches;
  std::uint64_t changes = 0;                       // elements that the patches write
  std::shared_ptr<const ModelFiles> sealed_files;  // of the version, complete
};

class Core final : public UploadHost, public std::enable_shared_from_this<Core> {
 public:
  using Sums = std::vector<std::pair<std::string, std::string>>;

  // sets[0] serves; sets[1] is null in patch mode.
  Core(std::array<std::shared_ptr<WeightSet>, 2> sets, Resident served, WeightTarget& target,
       const ReceiverOptions& options, const ReceiverRules& rules);
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
  void refused(const Error& error) override;
  void post(std::function<void()> job) override { blocking_.post(std::move(job)); }

  Result<void> start(const std::string& owner);
  Result<void> check_started(const std::string& owner);
  void update(const std::string& owner, std::optional<std::string> path, Done<void> done);
  void refuse(const std::string& owner, const Error& error) override;
  void finish(const std::string& owner, std::optional<std::string> label,
              std::optional<OnUpdate> on_update, Done<CommitReport> done);
  void roll_back(const std::string& owner, const std::string& id,
                 const std::optional<std::string>& expected, Done<CommitReport> done);
  Result<void> set_label(const std::string& label);
  void checksums(std::function<void(Sums)> done);
  // Of what is staged, as SealedVersion has it.
  std::optional<std::uint64_t> predicted_stall_us();
  ReceiverMetrics metrics();
  void add_time(UpdateStage stage, double seconds);

  // For whoever hands versions out.
  struct Residents {
    Resident serving;
    std::optional<Resident> retired, staged;
  };
  Residents residents();
  struct Reading {
    Resident resident;
    std::shared_ptr<const WeightSet> set;
    std::shared_ptr<const ModelFiles> files;
    SetIndex index;
  };
  enum class Reader { kOutside, kOwn };  // ReceiverMachine's begin_read(), begin_own_read()
  // Errors: the machine's. Requires, when it is read: end_read().
  Result<Reading> begin_read(const std::string& id, Reader reader);
  void end_read(SetIndex set);
  // `revoked` is called when the set is about to be overwritten, until the guard is dropped.
  std::shared_ptr<void> on_revoke(SetIndex set, std::function<void()> revoked);
  std::shared_ptr<void> on_head_moved(std::function<void()> moved);

  // For the writers of blocks.
  const WeightLayout& layout() const { return *layout_; }
  HashHelper& hash_helper() { return hash_helper_; }
  bool verifies_fully() const { return options_.verify == Verify::kFull; }
  // Where the bytes of an entry go. Requires: it has a place.
  std::span<std::byte> memory_of(Upload& upload, std::uint64_t entry) const;
  // What the base has there. Requires: it has.
  std::span<const std::byte> served_block(const Upload& upload, BlockPlace place);
  Result<void> settle(Upload& upload, const BlockClaim& claim,
                      const std::optional<Digest>& computed, const std::optional<Digest>& expected,
                      std::optional<Patch> patch);
  Result<void> keep(Upload& upload, BlockClaim& claim, std::uint64_t kept_bytes);
  void give_up(Upload& upload, const BlockClaim& claim);
  void count_block(Encoding encoding, std::uint64_t payload_bytes, double verify_seconds);

 private:
  using Callbacks = std::map<std::uint64_t, std::function<void()>>;
  // Tries something; false: not now, try again when something has changed.
  using Attempt = std::function<bool()>;

  void attempt(Attempt job);
  void changed();
  bool try_open(const std::string& owner, const UploadOffer& offer,
                const Done<UploadProgress>& done);
  bool try_path(const std::string& owner, const std::string& path, const Done<void>& done);
  // What follows from how a staging began, or did not.
  void follow_up(const Result<Opening>& opening);
  void set_timers();
  void cut_readers();
  void copy_served_blocks(const std::shared_ptr<Upload>& upload);
  void blocking_seal(const std::string& owner, Epoch epoch, const Done<SealedVersion>& done);
  Result<void> check_files(Upload& upload);
  void run_finish(const std::string& owner, std::optional<Epoch> epoch, const CommitWish& wish,
                  Done<CommitReport> done);
  void answer_finish(std::unique_lock<std::mutex> lock,
                     const Result<UpdateMachine::FinishStep>& step, Done<CommitReport> done);
  bool try_hand_over();
  void blocking_apply(Upload& upload);
  void on_committed(const Handover& handover, const Result<WeightTarget::Committed>& committed);
  void blocking_confirm(const std::shared_ptr<Upload>& upload);
  bool try_take_back(const std::shared_ptr<Upload>& upload);
  void on_taken_back(const std::shared_ptr<Upload>& upload, const Result<void>& done);
  bool try_checksums(const std::function<void(Sums)>& done);
  void save();
  void blocking_save();
  void run_path(const std::string& owner, Epoch epoch, const std::string& path);
  Result<void> blocking_stage_path(const std::string& owner, Epoch epoch,
                                   const std::filesystem::path& path);
  // `read` fills all of what it is given; `scratch` takes what cannot go straight to its place.
  Result<void> blocking_stage_tensor(Upload& upload, std::size_t index,
                                     std::vector<std::byte>& scratch,
                                     const std::function<Result<void>(std::span<std::byte>)>& read);
  std::shared_ptr<void> add_callback(Callbacks Core::*callbacks, std::function<void()> callback);
  CommitWish wish_of(std::optional<std::string> label, std::optional<OnUpdate> on_update) const;
  // With the lock held.
  Result<std::shared_ptr<Upload>> upload_of(Epoch epoch);
  std::optional<std::uint64_t> predict_stall_us(const Upload& upload) const;
  UploadProgress progress_of(const Upload& upload);

  WeightTarget& target_;
  const ReceiverOptions options_;
  const std::shared_ptr<const WeightLayout> layout_;
  const std::array<std::shared_ptr<WeightSet>, 2> sets_;

  std::mutex mutex_;  // of what follows
  ReceiverMachine machine_;
  std::array<std::shared_ptr<const ModelFiles>, 2> files_;  // of what sets_ hold
  std::shared_ptr<const ModelFiles> files_before_patch_;
  std::shared_ptr<Upload> upload_;  // of machine_'s staging
  std::vector<Done<CommitReport>> committing_;
  Instant committing_since_{};
  CommitReport last_commit_;
  std::vector<Done<void>> path_waiting_;
  Callbacks connections_, head_watchers_;
  Callbacks readers_of_0_, readers_of_1_;
  std::uint64_t last_callback_ = 0;
  std::vector<Attempt> waiting_;
  std::uint64_t changes_ = 0;
  bool retry_is_set_ = false;
  ReceiverMetrics metrics_;
  // Of the last patch. Source of the first value: measured, bench/pause_bench.py.
  double patch_ns_per_change_ = 10;

  HashHelper hash_helper_;
  JobThread blocking_{"weft-blk-0", JobThread::Rest::kDrop};
  std::unique_ptr<JobThread> saving_;  // where there is a state directory
};

// The values of an entry's blocks.
std::vector<Digest> hash_blocks(std::span<const std::byte> bytes);
// Hashes what a set holds, and the files.
Resident blocking_hash_resident(const WeightSet& set, const ModelFiles& files, VersionName name);

}  // namespace weft::internal
