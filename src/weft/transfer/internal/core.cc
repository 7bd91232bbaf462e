#include "weft/transfer/internal/core.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/transfer/internal/block_writer.h"

namespace weft::internal {
std::vector<Digest> hash_blocks(std::span<const std::byte> bytes) {
  std::vector<Digest> digests;
  for (std::uint64_t block = 0; block < block_count(bytes.size()); ++block) {
    digests.push_back(block_digest(bytes.size(), block, block_of(bytes, block)));
  }
  return digests;
}

Resident blocking_hash_resident(const WeightSet& set, const ModelFiles& files, VersionName name) {
  Resident resident;
  Manifest manifest;
  std::vector<std::vector<Digest>> blocks;
  const auto& specs = set.layout().tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    blocks.push_back(hash_blocks(set.tensor(i)));
    manifest.tensors.push_back({specs[i], merge_block_digests(blocks.back())});
  }
  for (const auto& [file, text] : files) {
    resident.file_blocks.push_back(hash_blocks(std::as_bytes(std::span(text))));
    manifest.files.push_back({file, text.size(), merge_block_digests(resident.file_blocks.back())});
  }
  blocks.insert(blocks.end(), resident.file_blocks.begin(), resident.file_blocks.end());
  if (name.converted) blocks.clear();
  resident.content = make_version_content(std::move(manifest), std::move(blocks));
  resident.name = std::move(name);
  resident.name.id = resident.content->id;
  return resident;
}

Upload::Upload(std::shared_ptr<Staging> staging_) : staging(std::move(staging_)), opened_at(now()) {
  for (const OfferedFile& file : staging->plan.files) {
    files.emplace_back(static_cast<std::size_t>(file.size_bytes), '\0');
  }
}

Core::Core(std::array<std::shared_ptr<WeightSet>, 2> sets, Resident served, WeightTarget& target,
           const ReceiverOptions& options, const ReceiverRules& rules)
    : target_(target),
      options_(options),
      layout_(std::shared_ptr<const WeightLayout>(sets[0], &sets[0]->layout())),
      sets_(std::move(sets)),
      machine_(layout_, rules, std::move(served)) {
  files_[0] = options_.files ? options_.files : std::make_shared<const ModelFiles>();
  if (options_.state) saving_ = std::make_unique<JobThread>("weft-state", JobThread::Rest::kRun);
}

void Core::blocking_shutdown() {
  std::vector<Attempt> waiting;
  {
    const std::lock_guard lock(mutex_);
    machine_.shutdown();
    waiting.swap(waiting_);
  }
  for (const Attempt& job : waiting) job();  // each is refused now, and says so
  blocking_.blocking_stop();
  if (saving_) saving_->blocking_stop();
}

void Core::attempt(Attempt job) {
  post([self = shared_from_this(), job = std::move(job)] {
    for (;;) {
      const std::uint64_t before = [&] {
        const std::lock_guard lock(self->mutex_);
        return self->changes_;
      }();
      if (job()) return;
      const std::lock_guard lock(self->mutex_);
      if (self->changes_ == before) return self->waiting_.push_back(job);
    }
  });
}

void Core::changed() {
  std::vector<Attempt> waiting;
  {
    const std::lock_guard lock(mutex_);
    ++changes_;
    waiting.swap(waiting_);
  }
  for (Attempt& job : waiting) attempt(std::move(job));
}

std::shared_ptr<void> Core::add_callback(Callbacks Core::*callbacks,
                                         std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = ++last_callback_;
  (this->*callbacks).emplace(id, std::move(callback));
  return {nullptr, [weak = weak_from_this(), callbacks, id](void*) {
            const auto self = weak.lock();
            if (!self) return;
            const std::lock_guard guard(self->mutex_);
            (*self.*callbacks).erase(id);
          }};
}

std::shared_ptr<void> Core::add_connection(std::function<void()> close) {
  return add_callback(&Core::connections_, std::move(close));
}

void Core::follow_up(const Result<Opening>& opening) {
  if (opening) {
    if (opening->evict) target_.evict_retired();
    if (opening->epoch == 0) set_timers();
  } else if (opening.error().code() == ErrorCode::kOverloaded) {
    Callbacks connections;
    {
      const std::lock_guard lock(mutex_);
      connections = connections_;
    }
    for (const auto& [id, close] : connections) close();
  }
}

// For what waits: when readers are cut, and when it is tried again, so that it keeps the lease of
// its update.
void Core::set_timers() {
  std::optional<Instant> cut_at;
  bool retries = false;
  {
    const std::lock_guard lock(mutex_);
    cut_at = machine_.cut_readers_at();
    retries = !std::exchange(retry_is_set_, true);
  }
  if (cut_at) blocking_.post_at(*cut_at, [self = shared_from_this()] { self->cut_readers(); });
  if (!retries) return;
  blocking_.post_at(now() + options_.lease / 3, [self = shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      self->retry_is_set_ = false;
    }
    self->changed();
  });
}

void Core::cut_readers() {
  Callbacks readers;
  {
    const std::lock_guard lock(mutex_);
    if (!machine_.cut_readers_at() || now() < *machine_.cut_readers_at()) return;
    readers.swap(machine_.serving_set() == 0 ? readers_of_1_ : readers_of_0_);
  }
  for (const auto& [id, revoked] : readers) revoked();
}

void Core::open_upload(const std::string& owner, UploadOffer offer, Done<UploadProgress> done) {
  attempt([self = shared_from_this(), owner, offer = std::move(offer), done = std::move(done)] {
    return self->try_open(owner, offer, done);
  });
}

bool Core::try_open(const std::string& owner, const UploadOffer& offer,
                    const Done<UploadProgress>& done) {
  std::shared_ptr<Upload> upload;
  const auto opening = [&]() -> Result<Opening> {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(const Opening answer, machine_.open_upload(owner, offer, now()));
    if (answer.epoch == 0 || answer.resumed) return answer;
    upload_ = upload = std::make_shared<Upload>(machine_.staging(answer.epoch).value());
    WEFT_TRY_VOID(machine_.hold(answer.epoch, now()));
    return answer;
  }();
  follow_up(opening);
  if (!opening) return done(opening.error()), true;
  if (opening->epoch == 0) return false;
  if (opening->resumed) return done(progress(owner, opening->epoch)), true;
  copy_served_blocks(upload);
  const auto answer = [&] {
    const std::lock_guard lock(mutex_);
    machine_.release(opening->epoch, now());
    metrics_.add(UpdateStage::kStage, seconds_since(upload->opened_at));
    return progress_of(*upload);
  }();
  done(answer);
  return true;
}

// What the upload need not send. The serving set stays what it is meanwhile: nothing is committed
// before this upload is complete or over.
void Core::copy_served_blocks(const std::shared_ptr<Upload>& upload) {
  Staging& staging = *upload->staging;
  for (const BlockPlace place : machine_.copies(staging)) {
    const auto claim = [&] {
      const std::lock_guard lock(mutex_);
      return machine_.claim(staging, place, FrameForm::kWhole, 0, now());
    }();
    if (!claim) return;
    if (claim->found != BlockLedger::Claim::kYours) continue;
    const auto entry = memory_of(*upload, place.entry);
    std::ranges::copy(served_block(*upload, place), block_of(entry, place.block).begin());
    if (!settle(*upload, *claim, staging.announced[place.entry][place.block], std::nullopt, {}))
      return;
  }
}

std::span<std::byte> Core::memory_of(Upload& upload, std::uint64_t entry) const {
  const UploadPlan& plan = upload.staging->plan;
  if (const auto file = plan.try_file(entry))
    return std::as_writable_bytes(std::span(upload.files[*file]));
  return sets_[upload.staging->set]->tensor(plan.try_target(entry).value());
}

std::span<const std::byte> Core::served_block(const Upload& upload, BlockPlace place) {
  const Staging& staging = *upload.staging;
  const SetIndex served = machine_.rules().patch_mode ? staging.set : 1 - staging.set;
  if (const auto file = staging.plan.try_file(place.entry)) {
    const std::lock_guard lock(mutex_);
    const std::string& text = files_[served]->at(staging.plan.files[*file].name);
    return block_of(std::as_bytes(std::span(text)), place.block);
  }
  const auto target = staging.plan.try_target(place.entry).value();
  return block_of(std::as_const(*sets_[served]).tensor(target), place.block);
}

Result<Epoch> Core::open_body(const std::string& owner) {
  const auto opening = [&] {
    const std::lock_guard lock(mutex_);
    return machine_.open_body(owner, now());
  }();
  follow_up(opening);
  if (!opening) return opening.error();
  if (opening->epoch != 0) return opening->epoch;
  const std::lock_guard lock(mutex_);  // its bytes are coming already, so it cannot wait
  return machine_.waiting_reason();
}

Result<void> Core::plan_body(Epoch epoch, std::vector<TensorSpec> tensors) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY_VOID(machine_.plan_body(epoch, tensors, now()));
  upload_ = std::make_shared<Upload>(machine_.staging(epoch).value());
  return {};
}

Result<UploadProgress> Core::progress(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY_VOID(machine_.check(owner, epoch, now()));
  WEFT_TRY(const auto upload, upload_of(epoch));
  return progress_of(*upload);
}

Result<void> Core::check(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  return machine_.check(owner, epoch, now());
}

Result<std::unique_ptr<BlockWriter>> Core::claim(Epoch epoch, std::uint64_t entry,
                                                 std::uint64_t block, Encoding encoding,
                                                 std::uint64_t payload_bytes) {
  const auto form = needs_base(encoding) ? FrameForm::kChanges : FrameForm::kWhole;
  std::shared_ptr<Upload> upload;
  const auto claim = [&]() -> Result<BlockClaim> {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(upload, upload_of(epoch));
    return machine_.claim(*upload->staging, {entry, block}, form, payload_bytes, now());
  }();
  if (!claim) return claim.error();
  const UploadPlan& plan = upload->staging->plan;
  const std::uint64_t block_bytes = block_length(plan.sizes_bytes[entry], block);
  const std::uint64_t most_bytes = max_payload_bytes(encoding, block_bytes);
  const bool is_exact = encoding == Encoding::kIdentity;
  if (payload_bytes > most_bytes || payload_bytes == 0 ||
      (is_exact && payload_bytes != block_bytes)) {
    if (claim->found == BlockLedger::Claim::kYours) give_up(*upload, *claim);
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}, block {}: the frame says {} bytes, the block has {}{}",
                             plan.name(entry, *layout_), block, payload_bytes,
                             is_exact ? "" : "at most ", most_bytes));
  }
  return make_block_writer(shared_from_this(), std::move(upload), *claim, encoding);
}

Result<void> Core::settle(Upload& upload, const BlockClaim& claim,
                          const std::optional<Digest>& computed,
                          const std::optional<Digest>& expected, std::optional<Patch> patch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY_VOID(machine_.settle(*upload.staging, claim, computed, expected, now()));
  if (patch) {
    upload.changes += patch->parsed.count;
    upload.patches.push_back(*std::move(patch));
  }
  if (upload.staging->ledger.missing_blocks() == 0)
    metrics_.add(UpdateStage::kSend, seconds_since(upload.opened_at));
  return {};
}

Result<void> Core::keep(Upload& upload, BlockClaim& claim, std::uint64_t kept_bytes) {
  const std::lock_guard lock(mutex_);
  return machine_.keep(*upload.staging, claim, kept_bytes);
}

void Core::give_up(Upload& upload, const BlockClaim& claim) {
  const std::lock_guard lock(mutex_);
  machine_.give_up(*upload.staging, claim, now());
}

void Core::count_block(Encoding encoding, std::uint64_t payload_bytes, double verify_seconds) {
  const std::lock_guard lock(mutex_);
  metrics_.bytes[std::string(encoding_name(encoding))] += payload_bytes;
  metrics_.add(UpdateStage::kVerify, verify_seconds);
}

Result<void> Core::touch(Epoch epoch) {
  const std::lock_guard lock(mutex_);
  return machine_.touch(epoch, now());
}

Result<void> Core::abort(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  return machine_.abort(owner, epoch, now());
}

void Core::fail(Epoch epoch, const Error& error) {
  log_warning("weights: an update was dropped, the old version serves on: {}", error.message());
  const std::lock_guard lock(mutex_);
  machine_.fail(epoch, error.message());
  ++metrics_.failed;
}

void Core::refused(const Error& error) {
  const std::lock_guard lock(mutex_);
  ++metrics_.refusals[error_traits(error.code()).name];
}

void Core::seal(const std::string& owner, Epoch epoch, Done<SealedVersion> done) {
  post([self = shared_from_this(), owner, epoch, done = std::move(done)] {
    self->blocking_seal(owner, epoch, done);
  });
}

void Core::blocking_seal(const std::string& owner, Epoch epoch, const Done<SealedVersion>& done) {
  const Instant start = now();
  std::shared_ptr<Upload> upload;
  const auto sealed = [&]() -> Result<SealedVersion> {
    const auto name = [&] {
      const VersionName& sealed_name = upload->staging->resident->name;
      return SealedVersion{sealed_name.id, sealed_name.converted, predict_stall_us(*upload)};
    };
    {
      const std::lock_guard lock(mutex_);
      WEFT_TRY_VOID(machine_.begin_seal(owner, epoch, now()));
      WEFT_TRY(upload, upload_of(epoch));
      if (upload->staging->resident) return name();
    }
    // Unlocked: with every block verified the ledger does not change any more.
    auto resident = [&]() -> Result<Resident> {
      WEFT_TRY_VOID(check_files(*upload));
      return ReceiverMachine::compose(*upload->staging, *layout_);
    }();
    std::ranges::sort(upload->patches, {}, [](const Patch& patch) {
      return std::pair(patch.place.entry, patch.place.block);
    });
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(machine_.end_seal(*upload->staging, std::move(resident), now()));
    metrics_.add(UpdateStage::kStage, seconds_since(start));
    return name();
  }();
  done(sealed);
}

std::optional<std::uint64_t> Core::predict_stall_us(const Upload& upload) const {
  if (!machine_.rules().patch_mode) return std::nullopt;
  return static_cast<std::uint64_t>(static_cast<double>(upload.changes) * patch_ns_per_change_ /
                                    1000);
}

std::optional<std::uint64_t> Core::predicted_stall_us() {
  const std::lock_guard lock(mutex_);
  if (!upload_ || !machine_.staged(now())) return std::nullopt;
  return predict_stall_us(*upload_);
}

// Gathers the files of the version, and asks the target whether they may take over.
Result<void> Core::check_files(Upload& upload) {
  const auto& sent = upload.staging->plan.files;
  const auto served = [&] {
    const std::lock_guard lock(mutex_);
    return files_[machine_.serving_set()];
  }();
  upload.sealed_files = served;
  if (sent.empty()) return {};
  ModelFiles files = *served;
  for (std::size_t i = 0; i < sent.size(); ++i) files[sent[i].name] = upload.files[i];
  WEFT_TRY_VOID(target_.check_files(files));
  upload.sealed_files = std::make_shared<const ModelFiles>(std::move(files));
  return {};
}

Result<void> Core::start(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  return machine_.start(owner, now());
}

Result<void> Core::check_started(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  return machine_.check_started(owner, now());
}

void Core::update(const std::string& owner, std::optional<std::string> path, Done<void> done) {
  if (path) {
    return attempt([self = shared_from_this(), owner, path = *std::move(path),
                    done = std::move(done)] { return self->try_path(owner, path, done); });
  }
  Epoch epoch = 0;
  const auto step = [&] {
    const std::lock_guard lock(mutex_);
    epoch = machine_.machine().epoch();
    return machine_.update(owner, now());
  }();
  if (!step) return done(step.error());
  if (*step != UpdateMachine::UpdateStep::kSeal) return done({});
  seal(owner, epoch, [done = std::move(done)](const auto& sealed) {
    done(sealed ? Result<void>() : sealed.error());
  });
}

void Core::refuse(const std::string& owner, const Error& error) {
  const std::lock_guard lock(mutex_);
  machine_.refuse(owner, error.message(), now());
}

UploadHost::Status Core::status() {
  const std::lock_guard lock(mutex_);
  const Instant at = now();
  const UpdateState state = machine_.state(at);
  const UpdateMachine& update = machine_.machine();
  return {state, update.owner(), update.epoch(), update.lease_left(at), machine_.serving().name};
}

Result<std::shared_ptr<Upload>> Core::upload_of(Epoch epoch) {
  WEFT_TRY(const auto staging, machine_.staging(epoch));
  WEFT_CHECK(upload_ && upload_->staging == staging);
  return upload_;
}

UploadProgress Core::progress_of(const Upload& upload) {
  const Staging& staging = *upload.staging;
  auto missing = staging.ledger.missing();
  // What stays as the base has it is not the sender's to send.
  std::erase_if(missing, [&](const auto& run) { return run.tensor >= staging.plan.offered(); });
  return {staging.epoch,
          machine_.state(now()),
          std::move(missing),
          staging.ledger.total_bytes(),
          staging.ledger.verified_bytes(),
          encodings_taken(staging.has_base),
          machine_.rules().patch_mode};
}

}  // namespace weft::internal
