#include "weft/store/internal/intake.h"

#include <algorithm>
#include <system_error>
#include <tuple>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/store/internal/archive_data.h"
#include "weft/store/internal/block_writer.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

bool is_open(Upload& upload) {
  return upload.committing || upload.machine.state(now()) != UpdateState::kIdle;
}

Error outside_grid(const PlannedUpload& plan, std::uint64_t entry, std::uint64_t block) {
  if (entry >= plan.entries.size()) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("there is no entry {}, the upload has {}", entry, plan.entries.size())};
  }
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} has {}, there is no block {}", plan.entries[entry].name(),
                      counted(block_count(plan.entries[entry].size_bytes), "block"), block)};
}

Result<void> check_payload(const PlannedUpload& plan, std::uint64_t entry, std::uint64_t block,
                           Encoding encoding, std::uint64_t payload_bytes) {
  if (entry >= plan.entries.size() || block >= block_count(plan.entries[entry].size_bytes)) {
    return outside_grid(plan, entry, block);
  }
  const UploadEntry& planned = plan.entries[entry];
  if (needs_base(encoding) && !planned.base_entry) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}, block {}: {}, but the upload has no base with this tensor",
                             planned.name(), block, encoding_name(encoding)));
  }
  const std::uint64_t length = block_length(planned.size_bytes, block);
  const std::uint64_t most = max_payload_bytes(encoding, length);
  const bool fits = encoding == Encoding::kIdentity ? payload_bytes == length
                                                    : payload_bytes > 0 && payload_bytes <= most;
  if (fits) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}, block {}: {} bytes, expected {}{} ({})", planned.name(), block,
                           payload_bytes, encoding == Encoding::kIdentity ? "" : "1 to ", most,
                           encoding_name(encoding)));
}

bool is_same_commit(const CommitRequest& a, const CommitRequest& b) {
  return std::tie(a.label, a.head, a.if_match) == std::tie(b.label, b.head, b.if_match);
}

}  // namespace

Intake::Intake(std::shared_ptr<Archive> archive, const Disk& disk, JobThread& jobs,
               JobThread& opens, IntakeOptions options)
    : archive_(std::move(archive)), disk_(disk), jobs_(jobs), opens_(opens), options_(options) {}

Result<std::shared_ptr<Upload>> Intake::find(Epoch epoch) const {
  const auto found = uploads_.find(epoch);
  if (found != uploads_.end()) return found->second;
  if (epoch == 0 || epoch > last_epoch_) {
    return Error(ErrorCode::kNotFound, "there is no such upload");
  }
  return Error(ErrorCode::kConflict, "this upload is over");
}

std::shared_ptr<Upload> Intake::find_open(const fs::path& staging) {
  for (const auto& [epoch, upload] : uploads_) {
    if (upload->staging == staging && is_open(*upload)) return upload;
  }
  return nullptr;
}

UploadProgress Intake::progress_of(Upload& upload) {
  UploadProgress progress;
  progress.epoch = upload.epoch;
  progress.state = upload.machine.state(now());
  if (upload.ledger) {
    progress.missing = upload.ledger->missing();
    progress.total_bytes = upload.ledger->total_bytes();
    progress.verified_bytes = upload.ledger->verified_bytes();
  }
  progress.encodings = encodings_taken(upload.plan && upload.plan->base);
  return progress;
}

Result<UploadProgress> Intake::progress(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(const auto upload, find(epoch));
  WEFT_TRY_VOID(upload->machine.check(owner, kOnlyEpoch, now()));
  return progress_of(*upload);
}

Result<void> Intake::check(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(const auto upload, find(epoch));
  return upload->machine.check(owner, kOnlyEpoch, now());
}

Result<void> Intake::touch(Epoch epoch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(const auto upload, find(epoch));
  return upload->machine.touch(kOnlyEpoch, now());
}

Result<std::unique_ptr<BlockWriter>> Intake::claim(Epoch epoch, std::uint64_t entry,
                                                   std::uint64_t block, Encoding encoding,
                                                   std::uint64_t payload_bytes) {
  std::shared_ptr<Upload> upload;
  std::shared_ptr<const PlannedUpload> plan;
  BlockLedger::Claim found;
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(upload, find(epoch));
    WEFT_TRY_VOID(upload->machine.touch(kOnlyEpoch, now()));
    plan = upload->plan;
    WEFT_TRY_VOID(check_payload(*plan, entry, block, encoding, payload_bytes));
    found = upload->ledger->claim(entry, block);
    // An open block means that nothing is sealed, so this cannot fail after touch().
    if (found == BlockLedger::Claim::kYours) {
      WEFT_TRY_VOID(upload->machine.begin_write(kOnlyEpoch, now()));
    }
  }
  return make_block_writer(shared_from_this(), std::move(upload), std::move(plan), entry, block,
                           found, encoding, payload_bytes);
}

Result<void> Intake::settle(Upload& upload, std::uint64_t entry, std::uint64_t block,
                            const Digest* digest) {
  const std::lock_guard lock(mutex_);
  upload.machine.end_write(kOnlyEpoch, now());
  const auto alive = upload.machine.touch(kOnlyEpoch, now());
  if (digest != nullptr && alive) {
    upload.ledger->verified(entry, block, *digest);
  } else {
    upload.ledger->failed(entry, block);
  }
  return digest == nullptr ? Result<void>() : alive;
}

void Intake::count_block(Encoding encoding, std::uint64_t payload_bytes) {
  const std::lock_guard lock(mutex_);
  ++stats_.blocks;
  stats_.bytes_in.at(static_cast<std::size_t>(encoding)) += payload_bytes;
}

std::string Intake::next_temporary_name() {
  return fmt::format("{}.tmp", ++last_temporary_);
}

void Intake::fail(Epoch epoch, const Error& error) {
  log_warning("store: an upload was dropped: {}", error.message());
  const std::lock_guard lock(mutex_);
  const auto upload = find(epoch);
  if (!upload || (*upload)->committing) return;
  (*upload)->machine.fail(kOnlyEpoch, error.message());
  remove_staging(*upload);
}

Result<void> Intake::abort(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(const auto upload, find(epoch));
  if (upload->committing) return being_committed();
  WEFT_TRY_VOID(upload->machine.abort(owner, kOnlyEpoch, now()));
  remove_staging(upload);
  return {};
}

void Intake::seal(const std::string& owner, Epoch epoch, Done<SealedVersion> done) {
  jobs_.post([self = shared_from_this(), owner, epoch, done = std::move(done)] {
    const auto content = self->blocking_seal(owner, epoch);
    if (!content) return done(content.error());
    done(SealedVersion{(*content)->id, false});
  });
}

Result<std::shared_ptr<const VersionContent>> Intake::blocking_seal(const std::string& owner,
                                                                    Epoch epoch) {
  std::shared_ptr<Upload> upload;
  std::shared_ptr<const PlannedUpload> plan;
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(upload, find(epoch));
    WEFT_TRY_VOID(upload->machine.check(owner, kOnlyEpoch, now()));
    if (upload->content) return upload->content;
    if (!upload->ledger) return Error(ErrorCode::kConflict, "its bytes are still arriving");
    if (const std::uint64_t missing = upload->ledger->missing_blocks(); missing != 0) {
      WEFT_TRY_VOID(upload->machine.seal(kOnlyEpoch, missing, now()));
    }
    plan = upload->plan;
    WEFT_TRY_VOID(upload->machine.hold(kOnlyEpoch, now()));
  }
  // Unlocked: with every block verified the ledger does not change any more.
  auto content = compose_version(*plan, *upload->ledger);
  const auto synced = disk_.sync_all(archive_->layout().uploads());
  const std::lock_guard lock(mutex_);
  upload->machine.release(kOnlyEpoch, now());
  if (!synced) return synced.error();
  WEFT_TRY_VOID(upload->machine.seal(kOnlyEpoch, 0, now()));
  upload->content = content;
  return content;
}

void Intake::commit(const std::string& owner, Epoch epoch, CommitRequest request,
                    Done<CommitReport> done) {
  jobs_.post([self = shared_from_this(), owner, epoch, request = std::move(request),
              done = std::move(done)] {
    done(self->blocking_commit(owner, epoch, request));
    const auto collected = self->archive_->blocking_collect(unix_ms());
    if (!collected) log_warning("store: {}", collected.error().message());
  });
}

Result<CommitReport> Intake::blocking_commit(const std::string& owner, Epoch epoch,
                                             const CommitRequest& request) {
  std::shared_ptr<Upload> upload;
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(upload, find(epoch));
    WEFT_TRY_VOID(upload->machine.check(owner, kOnlyEpoch, now()));
    if (upload->committed) {
      if (is_same_commit(*upload->committed, request)) return upload->report;
      return Error(ErrorCode::kConflict, "the upload was committed in another way");
    }
    if (!upload->content) {
      return Error(ErrorCode::kConflict, "it is not sealed: send what is missing and seal it");
    }
    WEFT_TRY_VOID(upload->machine.hold(kOnlyEpoch, now()));
    upload->committing = true;
  }
  const VersionContent& content = *upload->content;
  CommitReport report{
      {content.id, request.label.value_or(""), false}, content.manifest.tensors.size(), 0, 0};
  for (const std::uint64_t size_bytes : entry_sizes(content.manifest)) report.bytes += size_bytes;
  Catalog::Commit commit{{content.id, request.parent, request.origin, 0, unix_ms(), false,
                          report.tensors, report.bytes},
                         request.label,
                         request.head,
                         request.if_match};
  const std::string base = upload->plan->base ? upload->plan->base->content().id : request.parent;
  const bool has_base = options_.will_commit && !base.empty();
  const auto then = has_base ? options_.will_commit(content.id, base) : nullptr;
  const auto recorded =
      archive_->blocking_commit(upload->content, staged_blocks(*upload), std::move(commit));
  if (recorded && then) then();
  const std::lock_guard lock(mutex_);
  upload->committing = false;
  upload->machine.release(kOnlyEpoch, now());
  if (!recorded) return recorded.error();
  log_info("store: {} `{}` is here: {}, {} bytes", content.id, report.version.label,
           counted(report.tensors, "tensor"), report.bytes);
  WEFT_CHECK(upload->machine.finish(owner, request.label, now()).has_value());
  upload->machine.committed();
  upload->committed = request;
  upload->report = report;
  remove_staging(upload);
  return report;
}

std::vector<Archive::StagedBlock> Intake::staged_blocks(const Upload& upload) const {
  std::vector<Archive::StagedBlock> staged;
  for (std::uint64_t entry = 0; entry < upload.ledger->tensors(); ++entry) {
    std::uint64_t block = 0;
    for (const Digest& digest : upload.ledger->digests(entry)) {
      staged.push_back({digest, upload.staging / staged_name({entry, block++, digest})});
    }
  }
  return staged;
}

UploadHost::Status Intake::status() {
  const std::lock_guard lock(mutex_);
  Status status;
  for (const auto& [epoch, upload] : uploads_) {
    if (!is_open(*upload)) continue;
    status.state = upload->machine.state(now());
    status.owner = upload->owner;
    status.epoch = epoch;
    status.lease_left = upload->machine.lease_left(now());
  }
  return status;
}

void Intake::refused(const Error& error) {
  const std::lock_guard lock(mutex_);
  ++stats_.refused[error_traits(error.code()).name];
}

IntakeStats Intake::stats() {
  const std::lock_guard lock(mutex_);
  IntakeStats stats = stats_;
  stats.open = static_cast<std::uint64_t>(
      std::ranges::count_if(uploads_, [](const auto& each) { return is_open(*each.second); }));
  return stats;
}

}  // namespace weft::store
