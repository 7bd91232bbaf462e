// What Core does from a finished staging on: handing over, taking back, rolling back, and what is
// done with versions that are there.

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/transfer/internal/core.h"
#include "weft/transfer/internal/crew.h"
#include "weft/transfer/internal/sha256.h"

namespace weft::internal {
namespace {

using FinishStep = UpdateMachine::FinishStep;

// That write a patch: one core alone waits for memory. Source: measured, 1.19 GB with 1 % changed,
// 7.2 ns a change with two and 11.5 with one.
constexpr unsigned kPatchThreads = 2;

std::int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Error no_head(std::string_view name) {
  return {ErrorCode::kNotFound,
          fmt::format("no head `{}` here: a server has `{}` alone", name, kServedHead)};
}

CommitWish Core::wish_of(std::optional<std::string> label,
                         std::optional<OnUpdate> on_update) const {
  return {std::move(label), on_update.value_or(options_.on_update), {"", "", unix_ms()}};
}

void Core::commit(const std::string& owner, Epoch epoch, CommitRequest request,
                  Done<CommitReport> done) {
  if (request.head && *request.head != kServedHead) {
    const Error error = no_head(*request.head);
    return done(Error(ErrorCode::kInvalidArgument, error.message(), "body.head"));
  }
  CommitWish wish = wish_of(std::move(request.label), request.on_update);
  wish.provenance.parent = std::move(request.parent);
  wish.provenance.origin = std::move(request.origin);
  wish.if_match = std::move(request.if_match);
  run_finish(owner, epoch, wish, std::move(done));
}

void Core::finish(const std::string& owner, std::optional<std::string> label,
                  std::optional<OnUpdate> on_update, Done<CommitReport> done) {
  run_finish(owner, std::nullopt, wish_of(std::move(label), on_update), std::move(done));
}

void Core::run_finish(const std::string& owner, std::optional<Epoch> epoch, const CommitWish& wish,
                      Done<CommitReport> done) {
  std::unique_lock lock(mutex_);
  const auto step = machine_.finish(owner, epoch, wish, now());
  if (step && *step == FinishStep::kRename) {
    last_commit_ = {.version = machine_.serving().name};
    if (wish.label) target_.rename(last_commit_.version);
  }
  answer_finish(std::move(lock), step, std::move(done));
}

void Core::roll_back(const std::string& owner, const std::string& id,
                     const std::optional<std::string>& expected, Done<CommitReport> done) {
  std::unique_lock lock(mutex_);
  const auto step =
      machine_.roll_back(owner, id, expected, wish_of(std::nullopt, std::nullopt), now());
  if (step && *step == FinishStep::kRepeat && last_commit_.version.id != id) {
    last_commit_ = {.version = machine_.serving().name};
  }
  answer_finish(std::move(lock), step, std::move(done));
}

void Core::answer_finish(std::unique_lock<std::mutex> lock, const Result<FinishStep>& step,
                         Done<CommitReport> done) {
  if (!step) {
    lock.unlock();
    return done(step.error());
  }
  const bool is_done = *step == FinishStep::kRepeat || *step == FinishStep::kRename;
  const CommitReport report = last_commit_;
  if (!is_done) committing_.push_back(done);
  if (*step == FinishStep::kCommit) committing_since_ = now();
  lock.unlock();  // the target may call back at once
  if (is_done) return done(report);
  if (*step == FinishStep::kCommit && !try_hand_over())
    attempt([self = shared_from_this()] { return self->try_hand_over(); });
}

bool Core::try_hand_over() {
  std::unique_lock lock(mutex_);
  if (!machine_.may_hand_over()) return false;
  const Handover handover = machine_.handover();
  const auto upload = handover.is_rollback ? nullptr : upload_;
  WeightTarget::Takeover takeover{.version = handover.version,
                                  .on_update = handover.on_update,
                                  .is_rollback = handover.is_rollback};
  if (handover.new_files) takeover.files = upload ? upload->sealed_files : files_[handover.set];
  lock.unlock();
  takeover.released = [self = shared_from_this(), epoch = handover.epoch] {
    {
      const std::lock_guard guard(self->mutex_);
      self->machine_.released(epoch);
    }
    self->changed();
  };
  auto done = [self = shared_from_this(),
               handover](const Result<WeightTarget::Committed>& committed) {
    self->on_committed(handover, committed);
  };
  if (!handover.in_place) {
    target_.commit(sets_[handover.set], std::move(takeover), std::move(done));
    return true;
  }
  auto patch = [self = shared_from_this(), upload]() -> Result<void> {
    self->blocking_apply(*upload);
    return {};
  };
  target_.commit_in_place(std::move(patch), std::move(takeover), std::move(done));
  return true;
}

// In the pause, when nothing else computes. Blocks are disjoint.
void Core::blocking_apply(Upload& upload) {
  const Instant start = now();
  Crew crew;
  const std::size_t threads =
      std::min<std::size_t>(kPatchThreads, std::max<std::size_t>(1, upload.patches.size()));
  auto next = upload.patches.begin();
  crew.blocking_run(static_cast<unsigned>(threads), "weft-patch",
                    [&](std::unique_lock<std::mutex>& lock) {
                      while (next != upload.patches.end()) {
                        Patch& block = *next++;
                        lock.unlock();
                        const auto entry = memory_of(upload, block.place.entry);
                        apply_sparse(block.parsed, block_of(entry, block.place.block), &block.undo);
                        lock.lock();
                      }
                    });
  if (upload.changes == 0) return;
  const std::lock_guard lock(mutex_);
  patch_ns_per_change_ = seconds_since(start) * 1e9 / static_cast<double>(upload.changes);
}

void Core::on_committed(const Handover& handover,
                        const Result<WeightTarget::Committed>& committed) {
  std::vector<Done<CommitReport>> waiting;
  Result<CommitReport> report = CommitReport{handover.version, handover.tensors, handover.bytes,
                                             committed ? committed->stall_us : 0};
  std::shared_ptr<Upload> unconfirmed;
  Callbacks watchers;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(committing_);
    if (committed) {
      machine_.committed();
      if (handover.in_place) files_before_patch_ = files_[handover.set];
      if (!handover.is_rollback) files_[handover.set] = upload_->sealed_files;
      last_commit_ = *report;
      ++(handover.is_rollback ? metrics_.rolled_back : metrics_.committed);
      metrics_.add(UpdateStage::kCommit,
                   std::chrono::duration<double>(now() - committing_since_).count());
      metrics_.last_commit_ms = unix_ms();
      if (machine_.unconfirmed()) unconfirmed = upload_;
      watchers = head_watchers_;
    } else {
      machine_.not_committed(committed.error().message());
      report = committed.error();
      ++metrics_.failed;
    }
  }
  if (committed) {
    log_info("weights: {} `{}` took over: {}, {} bytes, stall {} us", handover.version.id,
             handover.version.label, counted(report->tensors, "tensor"), report->bytes,
             report->stall_us);
  } else {
    log_warning("weights: {} could not take over, the old version serves on: {}",
                handover.version.id, committed.error().message());
  }
  if (unconfirmed)
    post([self = shared_from_this(), unconfirmed] { self->blocking_confirm(unconfirmed); });
  if (committed) save();
  for (const auto& done : waiting) done(report);
  for (const auto& [id, moved] : watchers) moved();
  changed();
}

// Hashes what a patch has changed. Nothing is staged meanwhile, so nothing writes there.
void Core::blocking_confirm(const std::shared_ptr<Upload>& upload) {
  const Instant start = now();
  const Staging& staging = *upload->staging;
  const auto wrong = std::ranges::find_if(upload->patches, [&](const Patch& patch) {
    const auto [entry, block] = patch.place;
    const auto bytes = std::span<const std::byte>(memory_of(*upload, entry));
    return block_digest(bytes.size(), block, block_of(bytes, block)) !=
           staging.ledger.digests(entry)[block];
  });
  VersionName corrupt;
  {
    const std::lock_guard lock(mutex_);
    metrics_.add(UpdateStage::kHash, std::chrono::duration<double>(now() - start).count());
    if (wrong == upload->patches.end()) {
      machine_.confirmed();
      upload->patches.clear();
      save();
    } else {
      machine_.revoked();
      corrupt = machine_.serving().name;
      ++metrics_.corrupt;
    }
  }
  if (corrupt.corrupt) {
    log_error("weights: {} is corrupt at {}, block {}: it is taken back", corrupt.id,
              staging.plan.name(wrong->place.entry, *layout_), wrong->place.block);
    target_.rename(corrupt);
    attempt([self = shared_from_this(), upload] { return self->try_take_back(upload); });
  }
  changed();
}

bool Core::try_take_back(const std::shared_ptr<Upload>& upload) {
  std::unique_lock lock(mutex_);
  if (!machine_.may_hand_over()) return false;
  WeightTarget::Takeover takeover{.version = machine_.handover().version,
                                  .on_update = OnUpdate::kRecompute,
                                  .is_rollback = true};
  if (machine_.handover().new_files) takeover.files = files_before_patch_;
  lock.unlock();
  auto undo = [self = shared_from_this(), upload]() -> Result<void> {
    for (const Patch& block : upload->patches) {
      SparsePatch old = block.parsed;
      old.values = block.undo;
      const auto entry = self->memory_of(*upload, block.place.entry);
      apply_sparse(old, block_of(entry, block.place.block));
    }
    return {};
  };
  target_.commit_in_place(std::move(undo), std::move(takeover),
                          [self = shared_from_this(), upload](const auto& done) {
                            self->on_taken_back(upload, done ? Result<void>() : done.error());
                          });
  return true;
}

void Core::on_taken_back(const std::shared_ptr<Upload>& upload, const Result<void>& done) {
  if (!done) {
    // The patch before did work in the same way; what serves stays marked.
    log_error("weights: a corrupt version could not be taken back: {}", done.error().message());
    return;
  }
  Callbacks watchers;
  {
    const std::lock_guard lock(mutex_);
    machine_.undone();
    files_[machine_.serving_set()] = files_before_patch_;
    upload->patches.clear();
    last_commit_ = {.version = machine_.serving().name};
    watchers = head_watchers_;
  }
  for (const auto& [id, moved] : watchers) moved();
  changed();
}

Result<void> Core::set_label(const std::string& label) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY_VOID(machine_.rename(label));
  target_.rename(machine_.serving().name);
  save();
  return {};
}

void Core::checksums(std::function<void(Sums)> done) {
  attempt(
      [self = shared_from_this(), done = std::move(done)] { return self->try_checksums(done); });
}

bool Core::try_checksums(const std::function<void(Sums)>& done) {
  const auto index = [&] {
    const std::lock_guard lock(mutex_);
    return machine_.try_begin_read_serving();
  }();
  if (!index) return false;
  Sums sums;
  const WeightSet& set = *sets_[*index];
  for (std::size_t i = 0; i < set.layout().tensors().size(); ++i) {
    sums.emplace_back("dp0:pp0:pcp0:tp0:" + set.layout().tensors()[i].name,
                      sha256_hex(set.tensor(i)));
  }
  end_read(*index);
  done(std::move(sums));
  return true;
}

ReceiverMetrics Core::metrics() {
  const std::lock_guard lock(mutex_);
  ReceiverMetrics metrics = metrics_;
  metrics.residents = machine_.retired() == nullptr ? 1 : 2;
  return metrics;
}

void Core::add_time(UpdateStage stage, double seconds) {
  const std::lock_guard lock(mutex_);
  metrics_.add(stage, seconds);
}

Core::Residents Core::residents() {
  const std::lock_guard lock(mutex_);
  Residents residents{machine_.serving(), std::nullopt, std::nullopt};
  if (const Resident* const retired = machine_.retired()) residents.retired = *retired;
  if (const Resident* const staged = machine_.staged(now())) residents.staged = *staged;
  return residents;
}

Result<Core::Reading> Core::begin_read(const std::string& id, Reader reader) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY(const SetIndex set,
           reader == Reader::kOwn ? machine_.begin_own_read(id) : machine_.begin_read(id));
  const bool is_serving = set == machine_.serving_set();
  return Reading{is_serving ? machine_.serving() : *machine_.retired(), sets_[set], files_[set],
                 set};
}

void Core::end_read(SetIndex set) {
  {
    const std::lock_guard lock(mutex_);
    machine_.end_read(set);
  }
  changed();
}

std::shared_ptr<void> Core::on_revoke(SetIndex set, std::function<void()> revoked) {
  return add_callback(set == 0 ? &Core::readers_of_0_ : &Core::readers_of_1_, std::move(revoked));
}

std::shared_ptr<void> Core::on_head_moved(std::function<void()> moved) {
  return add_callback(&Core::head_watchers_, std::move(moved));
}

// Keeps what serves now in the state directory, where there is one.
void Core::save() {
  if (saving_) saving_->post([self = shared_from_this()] { self->blocking_save(); });
}

void Core::blocking_save() {
  Resident resident;
  std::shared_ptr<const ModelFiles> files;
  std::optional<SetIndex> index;
  {
    const std::lock_guard lock(mutex_);
    // What is being patched, or not confirmed yet, is saved when it is.
    if (!machine_.unconfirmed()) index = machine_.try_begin_read_serving();
    if (!index) return;
    resident = machine_.serving();
    files = files_[*index];
  }
  std::vector<TensorView> tensors;
  const WeightSet& set = *sets_[*index];
  for (std::size_t i = 0; i < layout_->tensors().size(); ++i)
    tensors.push_back({layout_->tensors()[i], set.tensor(i)});
  // A converted version has the id of what was sent.
  const std::string id = resident.name.converted
                             ? blocking_hash_resident(set, *files, {}).content->id
                             : resident.name.id;
  const auto saved = options_.state->blocking_save(tensors, *files, id, resident.name.label);
  end_read(*index);
  if (!saved) log_error("weights: {} was not saved: {}", resident.name.id, saved.error().message());
}

}  // namespace weft::internal
