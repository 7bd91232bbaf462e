#pragma once
// Intake: the uploads of a store, many side by side. Each (owner, offer) is an upload of its own,
// with a lease, an epoch and a folder of verified blocks that outlives the process. Thread-safe.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "weft/base/job_thread.h"
#include "weft/store/internal/archive.h"
#include "weft/store/internal/upload.h"
#include "weft/transfer/upload_host.h"

namespace weft::store {

struct IntakeOptions {
  std::chrono::milliseconds lease{300'000};
  std::chrono::milliseconds keep_staged{
      std::chrono::hours(24)};         // blocks of an upload that nobody goes on with
  std::size_t max_uploads = 256;       // open at a time
  std::uint64_t max_upload_bytes = 0;  // of one version
  // Called before each commit of version `id` that names another one that it was made from. What it
  // returns is called once the version is recorded, and dropped if it cannot be.
  std::function<std::function<void()>(const std::string& id, const std::string& base)>
      will_commit{};
};

struct IntakeStats {
  std::uint64_t open = 0;
  std::uint64_t blocks = 0;                      // verified
  BytesByEncoding bytes_in{};                    // of payloads of verified blocks
  std::map<std::string, std::uint64_t> refused;  // by the error's name
};

class Intake final : public UploadHost, public std::enable_shared_from_this<Intake> {
 public:
  // `jobs` is the archive's job thread; opens run on a thread of their own, so that they do not
  // wait for another upload's fsync. All must outlive this.
  Intake(std::shared_ptr<Archive> archive, const Disk& disk, JobThread& jobs, JobThread& opens,
         IntakeOptions options);
  // Drops what an upload that cannot go on left behind.
  void blocking_load();

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
  void commit(const std::string& owner, Epoch epoch, CommitRequest request,
              Done<CommitReport> done) override;
  // No memory is shared between uploads, so no connection ever has to be cut.
  std::shared_ptr<void> add_connection(std::function<void()>) override { return nullptr; }
  Status status() override;
  void refused(const Error& error) override;
  void post(std::function<void()> job) override { opens_.post(std::move(job)); }

  // Ends uploads whose lease ran out, and deletes staged blocks that are older than keep_staged.
  void sweep();
  IntakeStats stats();

  // For the writers of blocks.
  const Disk& disk() const { return disk_; }
  Archive& archive() { return *archive_; }
  std::string next_temporary_name();
  // What became of a claimed block: `digest` when it is verified and its file is in place.
  Result<void> settle(Upload& upload, std::uint64_t entry, std::uint64_t block,
                      const Digest* digest);
  void count_block(Encoding encoding, std::uint64_t payload_bytes);

 private:
  Result<UploadProgress> blocking_open(const std::string& owner, UploadOffer offer);
  Result<std::shared_ptr<Upload>> blocking_make_upload(const std::string& owner,
                                                       const std::filesystem::path& staging,
                                                       std::shared_ptr<const PlannedUpload> plan);
  void adopt_objects(Upload& upload);
  void blocking_adopt_staged(Upload& upload);
  Result<void> check_space(const PlannedUpload& plan, const BlockLedger& ledger) const;
  Result<std::shared_ptr<const VersionContent>> blocking_seal(const std::string& owner,
                                                              Epoch epoch);
  Result<CommitReport> blocking_commit(const std::string& owner, Epoch epoch,
                                       const CommitRequest& request);
  std::vector<Archive::StagedBlock> staged_blocks(const Upload& upload) const;
  void remove_staging(const std::shared_ptr<Upload>& upload);
  // With the lock held.
  Result<std::shared_ptr<Upload>> find(Epoch epoch) const;
  UploadProgress progress_of(Upload& upload);
  std::shared_ptr<Upload> find_open(const std::filesystem::path& staging);
  void drop_others(const std::string& owner);
  // Gives up what uploads that are over hold, and forgets the oldest of them. Returns how many are
  // open.
  std::size_t let_go_of_closed();
  // Errors: kOverloaded when no more may be open.
  Result<void> make_room();

  const std::shared_ptr<Archive> archive_;
  const Disk& disk_;
  JobThread& jobs_;
  JobThread& opens_;
  const IntakeOptions options_;

  std::mutex mutex_;  // of what follows; taken before the archive's
  std::map<Epoch, std::shared_ptr<Upload>> uploads_;
  Epoch last_epoch_ = 0;
  IntakeStats stats_;
  std::atomic<std::uint64_t> last_temporary_ = 0;
};

}  // namespace weft::store
