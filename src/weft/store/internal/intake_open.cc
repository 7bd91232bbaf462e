// How the uploads of an Intake begin, and what becomes of what they leave behind.

#include <algorithm>
#include <system_error>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/store/internal/intake.h"

namespace weft::store {
namespace {

namespace fs = std::filesystem;

// Folders of uploads that end with their connection: "body-7".
constexpr std::string_view kBodyPrefix = "body-";
// Uploads that are over are remembered, so that a call that is repeated is answered as before.
constexpr std::size_t kRemembered = 64;

// Who offers what: the same offer of the same owner finds its blocks again.
std::string folder_name(const std::string& owner, const Digest& skeleton) {
  Hasher hasher;
  hasher.update(skeleton.bytes);
  hasher.update(std::as_bytes(std::span(owner)));
  return digest_hex(hasher.finish());
}

// Does the staged file hold the block that its name says, whole?
bool is_whole(const fs::path& path, std::uint64_t entry_bytes, const StagedName& name,
              std::vector<std::byte>& memory) {
  const std::uint64_t length = block_length(entry_bytes, name.block);
  const auto file = File::open(path);
  if (!file || file->size_bytes() != length) return false;
  memory.resize(static_cast<std::size_t>(length));
  return file->blocking_read_at(0, memory) &&
         block_digest(entry_bytes, name.block, memory) == name.digest;
}

}  // namespace

void Intake::open_upload(const std::string& owner, UploadOffer offer, Done<UploadProgress> done) {
  opens_.post(
      [self = shared_from_this(), owner, offer = std::move(offer),
       done = std::move(done)]() mutable { done(self->blocking_open(owner, std::move(offer))); });
}

Result<UploadProgress> Intake::blocking_open(const std::string& owner, UploadOffer offer) {
  std::shared_ptr<const Stored> base;
  if (offer.base) {
    WEFT_TRY(base, archive_->hold(*offer.base));
  }
  WEFT_TRY(auto plan, plan_store_upload(offer, std::move(base), options_.max_upload_bytes));
  const fs::path staging = archive_->layout().uploads() / folder_name(owner, offer.skeleton);
  // Without digests nobody can tell blocks of this version from those of the one before.
  const bool may_resume = !offer.replace || is_announced(*plan);
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(make_room());
    const auto upload = find_open(staging);
    if (upload && may_resume) {
      WEFT_TRY_VOID(upload->machine.open_upload(owner, offer.skeleton, false, now()));
      return progress_of(*upload);
    }
    if (upload && upload->committing) return being_committed();
    if (upload) WEFT_TRY_VOID(upload->machine.abort(owner, kOnlyEpoch, now()));
  }
  // All opens run on one thread: nobody else makes this upload meanwhile.
  if (!may_resume) WEFT_TRY_VOID(disk_.remove_all(staging));
  WEFT_TRY(const auto upload, blocking_make_upload(owner, staging, std::move(plan)));
  const std::lock_guard lock(mutex_);
  if (offer.replace) drop_others(owner);
  WEFT_TRY_VOID(upload->machine.open_upload(owner, offer.skeleton, false, now()));
  uploads_.emplace(upload->epoch, upload);
  return progress_of(*upload);
}

Result<std::shared_ptr<Upload>> Intake::blocking_make_upload(
    const std::string& owner, const fs::path& staging, std::shared_ptr<const PlannedUpload> plan) {
  const Epoch epoch = [&] {
    const std::lock_guard lock(mutex_);
    return ++last_epoch_;
  }();
  const auto upload = std::make_shared<Upload>(epoch, owner, staging, options_.lease);
  upload->plan = std::move(plan);
  upload->ledger.emplace(upload->plan->sizes_bytes());
  WEFT_TRY_VOID(disk_.make_dirs(upload->staging));
  blocking_adopt_staged(*upload);
  adopt_objects(*upload);
  const auto fits = check_space(*upload->plan, *upload->ledger);
  if (!fits) {
    archive_->release_objects(upload->taken);
    return fits.error();
  }
  return upload;
}

// What is announced and on disk need not be sent.
void Intake::adopt_objects(Upload& upload) {
  for (std::size_t entry = 0; entry < upload.plan->entries.size(); ++entry) {
    const auto& announced = upload.plan->announced[entry];
    for (std::size_t block = 0; block < announced.size(); ++block) {
      if (upload.ledger->claim(entry, block) != BlockLedger::Claim::kYours) continue;
      if (archive_->take_object(announced[block])) {
        upload.taken.push_back(announced[block]);
        upload.ledger->verified(entry, block, announced[block]);
      } else {
        upload.ledger->failed(entry, block);
      }
    }
  }
}

// What an earlier process, or an upload whose lease ran out, got of the same offer. Each block is
// hashed again before it counts: a crash of the machine may have lost its end.
void Intake::blocking_adopt_staged(Upload& upload) {
  std::vector<std::byte> memory;
  for (const fs::path& path : names_in(upload.staging)) {
    const auto name = try_parse_staged_name(path.filename().string());
    if (!name || name->entry >= upload.plan->entries.size()) continue;
    const std::uint64_t entry_bytes = upload.plan->entries[name->entry].size_bytes;
    if (name->block >= block_count(entry_bytes)) continue;
    const auto& announced = upload.plan->announced[name->entry];
    if (!announced.empty() && announced[name->block] != name->digest) continue;
    if (upload.ledger->claim(name->entry, name->block) != BlockLedger::Claim::kYours) continue;
    if (is_whole(path, entry_bytes, *name, memory)) {
      upload.ledger->verified(name->entry, name->block, name->digest);
    } else {
      upload.ledger->failed(name->entry, name->block);
      static_cast<void>(disk_.remove(path));
    }
  }
}

Result<void> Intake::check_space(const PlannedUpload& plan, const BlockLedger& ledger) const {
  std::error_code error;
  const auto space = fs::space(archive_->layout().root, error);
  const std::uint64_t needed = plan.total_bytes - ledger.verified_bytes();
  if (error || needed <= space.available) return {};
  return Error(ErrorCode::kNoSpace,
               fmt::format("the upload brings {} bytes, the store's disk has {} left", needed,
                           space.available));
}

Result<Epoch> Intake::open_body(const std::string& owner) {
  std::shared_ptr<Upload> upload;
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(make_room());
    const Epoch epoch = ++last_epoch_;
    const fs::path staging = archive_->layout().uploads() / fmt::format("{}{}", kBodyPrefix, epoch);
    upload = std::make_shared<Upload>(epoch, owner, staging, options_.lease);
    WEFT_TRY_VOID(upload->machine.open_body(owner, now()));
  }
  WEFT_TRY_VOID(disk_.make_dirs(upload->staging));
  const std::lock_guard lock(mutex_);
  uploads_.emplace(upload->epoch, upload);
  return upload->epoch;
}

Result<void> Intake::plan_body(Epoch epoch, std::vector<TensorSpec> tensors) {
  UploadOffer offer;
  offer.blocks.resize(tensors.size());
  offer.tensors = std::move(tensors);
  WEFT_TRY(auto plan, plan_store_upload(offer, nullptr, options_.max_upload_bytes));
  BlockLedger ledger(plan->sizes_bytes());
  WEFT_TRY_VOID(check_space(*plan, ledger));
  const std::lock_guard lock(mutex_);
  WEFT_TRY(const auto upload, find(epoch));
  WEFT_TRY_VOID(upload->machine.touch(kOnlyEpoch, now()));
  upload->plan = std::move(plan);
  upload->ledger.emplace(std::move(ledger));
  return {};
}

void Intake::drop_others(const std::string& owner) {
  for (const auto& [epoch, upload] : uploads_) {
    if (upload->owner != owner || upload->committing) continue;
    if (upload->machine.state(now()) == UpdateState::kIdle) continue;
    if (upload->machine.abort(owner, kOnlyEpoch, now())) remove_staging(upload);
  }
}

std::size_t Intake::let_go_of_closed() {
  std::size_t open = 0;
  std::vector<Epoch> over;
  for (const auto& [epoch, upload] : uploads_) {
    if (upload->committing || upload->machine.state(now()) != UpdateState::kIdle) {
      ++open;
      continue;
    }
    upload->plan = nullptr;
    archive_->release_objects(std::exchange(upload->taken, {}));
    over.push_back(epoch);
  }
  for (std::size_t i = 0; i + kRemembered < over.size(); ++i) uploads_.erase(over[i]);
  return open;
}

Result<void> Intake::make_room() {
  const std::size_t open = let_go_of_closed();
  if (open < options_.max_uploads) return {};
  return Error(ErrorCode::kOverloaded,
               fmt::format("{} uploads are open, at most {}", open, options_.max_uploads));
}

// Later, on the thread of the opens: the folder may be in use again by then.
void Intake::remove_staging(const std::shared_ptr<Upload>& upload) {
  opens_.post([self = shared_from_this(), upload] {
    {
      const std::lock_guard lock(self->mutex_);
      self->let_go_of_closed();
      if (self->find_open(upload->staging)) return;
    }
    const auto removed = self->disk_.remove_all(upload->staging);
    if (!removed) log_warning("store: {}", removed.error().message());
  });
}

void Intake::blocking_load() {
  for (const fs::path& folder : names_in(archive_->layout().uploads())) {
    const bool is_body = folder.filename().string().starts_with(kBodyPrefix);
    if (is_body) static_cast<void>(disk_.remove_all(folder));
    for (const fs::path& path : names_in(folder)) {
      if (path.extension() == ".tmp") static_cast<void>(disk_.remove(path));
    }
  }
}

void Intake::sweep() {
  opens_.post([self = shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      self->let_go_of_closed();
    }
    const auto oldest = fs::file_time_type::clock::now() - self->options_.keep_staged;
    for (const fs::path& folder : names_in(self->archive_->layout().uploads())) {
      std::error_code error;
      const auto written = fs::last_write_time(folder, error);
      if (error || written > oldest) continue;
      {
        const std::lock_guard lock(self->mutex_);
        if (self->find_open(folder)) continue;
      }
      log_info("store: {}: nobody went on with this upload; its blocks are dropped",
               folder.string());
      static_cast<void>(self->disk_.remove_all(folder));
    }
  });
}

}  // namespace weft::store
