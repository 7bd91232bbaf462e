#include "weft/protocol/receiver_machine.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "weft/base/wording.h"
#include "weft/protocol/label.h"

namespace weft {
namespace {

using Claim = BlockLedger::Claim;
using Use = BlockClaim::Use;

Error outside_grid(const Staging& staging, BlockPlace place, const WeightLayout& layout) {
  const auto& sizes = staging.plan.sizes_bytes;
  if (place.entry >= sizes.size()) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("there is no entry {}, the upload has {}",
                                                          place.entry, staging.plan.offered()));
  }
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} has {}, there is no block {}", staging.plan.name(place.entry, layout),
                  counted(block_count(sizes[place.entry]), "block"), place.block));
}

bool same_files(const Resident& a, const Resident& b) {
  const auto equal = [](const ManifestFile& x, const ManifestFile& y) {
    return x.name == y.name && x.digest == y.digest;
  };
  return std::ranges::equal(a.content->manifest.files, b.content->manifest.files, equal);
}

// Are the digests of all blocks known, so that only the right bytes can be taken?
bool is_announced(const Staging& staging) {
  for (std::size_t entry = 0; entry < staging.announced.size(); ++entry) {
    if (staging.announced[entry].size() != block_count(staging.plan.sizes_bytes[entry]))
      return false;
  }
  return true;
}

}  // namespace

ReceiverMachine::ReceiverMachine(std::shared_ptr<const WeightLayout> layout, ReceiverRules rules,
                                 Resident serving)
    : layout_(std::move(layout)), rules_(rules), machine_(rules.lease) {
  residents_[serving_] = std::move(serving);
}

Result<void> ReceiverMachine::check_base(const UploadOffer& offer) const {
  if (!offer.base) {
    if (!offer.partial) return {};
    return Error(ErrorCode::kInvalidArgument, "a partial upload names its base", "body.base");
  }
  const VersionName& served = serving().name;
  if (*offer.base != served.id) {
    return Error(
        ErrorCode::kNotFound,
        fmt::format("the base {} does not serve here, {} does: send in full, or against it",
                    *offer.base, served.id),
        "body.base");
  }
  if (!served.converted) return {};
  return Error(ErrorCode::kConflict,
               fmt::format("the base {} was converted on receipt, so nothing can be based on it: "
                           "send in full",
                           served.id),
               "body.base");
}

Error ReceiverMachine::too_large() const {
  return Error(ErrorCode::kTooLarge,
               fmt::format("there is no memory for a second set of {} bytes, so only changes of "
                           "what serves are taken, at most {} bytes of them: name it as the base "
                           "and send what differs",
                           layout_->size_bytes(), rules_.max_patch_bytes));
}

// What has to come must be changes, or be here already.
Result<void> ReceiverMachine::check_patchable(const Staging& staging) const {
  if (!rules_.patch_mode) return {};
  if (staging.plan.converted) return too_large();
  if (staging.has_base) return {};
  for (std::size_t i = 0; i < staging.plan.tensors.size(); ++i) {
    const auto* const have = staging.served_blocks(i);
    const bool is_here = staging.plan.sizes_bytes[i] == 0 || !staging.plan.tensors[i].target ||
                         (have != nullptr && *have == staging.announced[i]);
    if (!is_here) return too_large();
  }
  return {};
}

ReceiverMachine::Wait ReceiverMachine::waiting() const {
  if (unconfirmed_) return Wait::kConfirmation;
  if (rules_.patch_mode) return Wait::kNone;
  if (unreleased_ != 0) return Wait::kSequences;
  return readers_[spare()] > 0 ? Wait::kReaders : Wait::kNone;
}

Error ReceiverMachine::waiting_reason() const {
  switch (waiting()) {
    case Wait::kConfirmation:
      return Error(ErrorCode::kOverloaded, "the last patch is still being confirmed");
    case Wait::kSequences:
      return Error(ErrorCode::kOverloaded, "sequences still run on the retired weights");
    case Wait::kReaders:
    case Wait::kNone:
      break;
  }
  return Error(ErrorCode::kOverloaded,
               "the retired weights are still being read: try again in a moment");
}

// Does what makes the memory free, or says that it will not be.
Result<Opening> ReceiverMachine::wait(Instant now) {
  Opening opening;
  switch (waiting()) {
    case Wait::kSequences:
      if (rules_.on_third == OnThird::kRefuse) {
        return Error(ErrorCode::kConflict,
                     "sequences still run on the retired weights, and a third version has no "
                     "memory before they end: try again in a moment",
                     std::string(kOnThirdParam));
      }
      opening.evict = rules_.on_third == OnThird::kRecompute;
      break;
    case Wait::kReaders:
      residents_[spare()] = {};  // for those who come from now on
      if (!cut_readers_at_) cut_readers_at_ = now + rules_.reader_grace;
      break;
    case Wait::kConfirmation:
    case Wait::kNone:
      break;
  }
  return opening;
}

// The blocks of a tied head that are announced as the embedding's need not come: what those are is
// checked, and that all of the two are equal, too, at the seal.
void ReceiverMachine::settle_tied_head(Staging& staging) const {
  const auto& tensors = staging.plan.tensors;
  const auto is_head = [](const PlannedTensor& tensor) { return !tensor.target; };
  const auto head =
      static_cast<std::uint64_t>(std::ranges::find_if(tensors, is_head) - tensors.begin());
  for (std::uint64_t entry = 0; head < tensors.size() && entry < staging.announced.size();
       ++entry) {
    const auto target = staging.plan.try_target(entry);
    if (!target || layout_->tensors()[*target].name != kEmbeddingName) continue;
    const auto& blocks = staging.announced[head];
    for (std::uint64_t block = 0; block < blocks.size(); ++block) {
      const auto& twins = staging.announced[entry];
      if (block >= twins.size() || twins[block] != blocks[block]) continue;
      staging.ledger.claim(head, block);
      staging.ledger.verified(head, block, blocks[block]);
    }
  }
}

Result<Opening> ReceiverMachine::opened(const Result<Epoch>& epoch,
                                        std::shared_ptr<Staging> staging, Instant now) {
  if (!epoch) return epoch.error();
  if (*epoch == 0) return wait(now);
  if (!rules_.patch_mode) residents_[spare()] = {};
  path_.clear();
  staging_ = std::move(staging);
  if (!staging_) return Opening{*epoch};
  staging_->epoch = *epoch;
  settle_tied_head(*staging_);
  if (rules_.patch_mode) {
    for (const auto [entry, block] : copies(*staging_)) {
      if (staging_->plan.try_file(entry)) continue;  // those are gathered anew
      staging_->ledger.claim(entry, block);
      staging_->ledger.verified(entry, block, staging_->announced[entry][block]);
    }
  }
  return Opening{*epoch};
}

Result<Opening> ReceiverMachine::open_upload(std::string_view owner, const UploadOffer& offer,
                                             Instant now) {
  WEFT_TRY_VOID(check_base(offer));
  WEFT_TRY(UploadPlan plan, plan_offer(*layout_, offer, rules_.tied_embeddings));
  auto staging = std::make_shared<Staging>(std::move(plan), offer.blocks, serving(),
                                           offer.base.has_value(), spare());
  WEFT_TRY_VOID(check_patchable(*staging));
  machine_.close_gate(waiting() != Wait::kNone);
  // Names and shapes alone do not say that what came before is of the same version: whoever wants
  // to begin anew does, and what is still on its way to the old upload is fenced.
  const bool may_resume = !offer.replace || is_announced(*staging);
  WEFT_TRY(const auto answer,
           machine_.open_upload(owner, offer.skeleton, offer.replace, now, may_resume));
  if (answer.resumed) return Opening{answer.epoch, true};
  return opened(answer.epoch, std::move(staging), now);
}

Result<Opening> ReceiverMachine::open_body(std::string_view owner, Instant now) {
  if (rules_.patch_mode) return too_large();
  machine_.close_gate(waiting() != Wait::kNone);
  return opened(machine_.open_body(owner, now), nullptr, now);
}

Result<Opening> ReceiverMachine::open_path(std::string_view owner, std::string_view path,
                                           Instant now) {
  const bool is_same = machine_.state(now) == UpdateState::kStaging && machine_.owner() == owner &&
                       !path_.empty() && path_ == path;
  if (is_same) return Opening{machine_.epoch(), true};
  if (rules_.patch_mode) return too_large();
  machine_.close_gate(waiting() != Wait::kNone);
  WEFT_TRY(const Opening opening, opened(machine_.open_path(owner, now), nullptr, now));
  if (opening.epoch != 0) path_ = path;
  return opening;
}

Result<void> ReceiverMachine::plan_body(Epoch epoch, std::span<const TensorSpec> tensors,
                                        Instant now) {
  WEFT_TRY(UploadPlan plan, plan_upload(*layout_, tensors, rules_.tied_embeddings));
  WEFT_TRY_VOID(machine_.touch(epoch, now));
  staging_ = std::make_shared<Staging>(std::move(plan), std::vector<std::vector<Digest>>(),
                                       serving(), false, spare());
  staging_->epoch = epoch;
  return {};
}

// A body or a path is staging before its header, and so its tensors, are known.
Result<std::shared_ptr<Staging>> ReceiverMachine::staging(Epoch epoch) {
  if (staging_ && staging_->epoch == epoch) return staging_;
  return Error(ErrorCode::kConflict, "the header of this upload has not come yet");
}

std::vector<BlockPlace> ReceiverMachine::copies(const Staging& staging) {
  std::vector<BlockPlace> places;
  for (std::uint64_t entry = 0; entry < staging.announced.size(); ++entry) {
    const auto* const have = staging.served_blocks(entry);
    if (have == nullptr) continue;
    const auto& announced = staging.announced[entry];
    for (std::uint64_t block = 0; block < announced.size(); ++block) {
      if (announced[block] == (*have)[block]) places.push_back({entry, block});
    }
  }
  return places;
}

Result<BlockClaim::Use> ReceiverMachine::use_of(const Staging& staging, BlockPlace place,
                                                FrameForm form) const {
  const bool is_file = staging.plan.try_file(place.entry).has_value();
  if (form == FrameForm::kWhole) {
    if (is_file) return Use::kStore;
    const bool has_place = staging.plan.try_target(place.entry) && !rules_.patch_mode;
    return has_place ? Use::kStore : Use::kHash;
  }
  if (!staging.has_base) {
    return Error(ErrorCode::kInvalidArgument,
                 "changes need a base: name it when the upload is opened");
  }
  if (is_file || staging.served_blocks(place.entry) == nullptr) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}, block {}: the base has no such tensor in this form: send it whole",
                    staging.plan.name(place.entry, *layout_), place.block));
  }
  return rules_.patch_mode ? Use::kKeep : Use::kScatter;
}

Result<BlockClaim> ReceiverMachine::claim(Staging& staging, BlockPlace place, FrameForm form,
                                          std::uint64_t payload_bytes, Instant now) {
  WEFT_TRY_VOID(machine_.touch(staging.epoch, now));
  const auto& sizes = staging.plan.sizes_bytes;
  if (place.entry >= sizes.size() || place.block >= block_count(sizes[place.entry])) {
    return outside_grid(staging, place, *layout_);
  }
  WEFT_TRY(const Use use, use_of(staging, place, form));
  const Claim found = staging.ledger.claim(place.entry, place.block);
  if (found != Claim::kYours) return BlockClaim{place, found, Use::kDiscard, payload_bytes};
  BlockClaim claim{place, found, use, payload_bytes};
  const auto kept = use == Use::kKeep ? keep(staging, claim, payload_bytes) : Result<void>();
  if (!kept) {
    staging.ledger.failed(place.entry, place.block);
    return kept.error();
  }
  // An open block means that nothing is sealed, so this cannot fail after touch().
  WEFT_TRY_VOID(machine_.begin_write(staging.epoch, now));
  return claim;
}

Result<void> ReceiverMachine::keep(Staging& staging, BlockClaim& claim,
                                   std::uint64_t kept_bytes) const {
  const std::uint64_t others_bytes = staging.patch_bytes - claim.kept_bytes;
  if (kept_bytes > rules_.max_patch_bytes - others_bytes) {
    return Error(ErrorCode::kTooLarge,
                 fmt::format("{} bytes of changes are kept, {} more are over the limit of {}",
                             others_bytes, kept_bytes, rules_.max_patch_bytes));
  }
  staging.patch_bytes = others_bytes + kept_bytes;
  claim.kept_bytes = kept_bytes;
  return {};
}

Result<void> ReceiverMachine::settle(Staging& staging, const BlockClaim& claim,
                                     const std::optional<Digest>& computed,
                                     const std::optional<Digest>& expected, Instant now) {
  const auto [entry, block] = claim.place;
  const auto& announced = staging.announced[entry];
  const Digest value = computed ? *computed : expected.value();
  for (const Digest* wanted :
       {expected ? &*expected : nullptr, announced.empty() ? nullptr : &announced[block]}) {
    if (wanted == nullptr || *wanted == value) continue;
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}, block {}: the bytes that came are {}, expected {}",
                             staging.plan.name(entry, *layout_), block, digest_text(value),
                             digest_text(*wanted)));
  }
  const bool is_compared =
      rules_.patch_mode && claim.use == Use::kHash && staging.plan.try_target(entry);
  if (is_compared) {
    const auto* const have = staging.served_blocks(entry);
    if (have == nullptr || (*have)[block] != value) return too_large();
  }
  if (!computed) staging.is_verified = false;
  machine_.end_write(staging.epoch, now);
  staging.ledger.verified(entry, block, value);
  return machine_.touch(staging.epoch, now);
}

void ReceiverMachine::give_up(Staging& staging, const BlockClaim& claim, Instant now) {
  machine_.end_write(staging.epoch, now);
  staging.ledger.failed(claim.place.entry, claim.place.block);
  staging.patch_bytes -= claim.kept_bytes;
}

Result<std::shared_ptr<Staging>> ReceiverMachine::begin_seal(std::string_view owner, Epoch epoch,
                                                             Instant now) {
  WEFT_TRY_VOID(machine_.check(owner, epoch, now));
  WEFT_TRY(auto staging, this->staging(epoch));
  if (staging->resident) return staging;
  if (const std::uint64_t missing = staging->ledger.missing_blocks(); missing != 0)
    WEFT_TRY_VOID(machine_.seal(epoch, missing, now));
  WEFT_TRY_VOID(machine_.hold(epoch, now));
  return staging;
}

Result<void> ReceiverMachine::end_seal(Staging& staging, Result<Resident> resident, Instant now) {
  machine_.release(staging.epoch, now);
  if (!resident) {
    machine_.fail(staging.epoch, resident.error().message());
    return resident.error();
  }
  WEFT_TRY_VOID(machine_.seal(staging.epoch, 0, now));
  staging.resident = *std::move(resident);
  return {};
}

Result<UpdateMachine::FinishStep> ReceiverMachine::finish(std::string_view owner,
                                                          std::optional<Epoch> epoch,
                                                          const CommitWish& wish, Instant now) {
  WEFT_TRY_VOID(check_label(wish.label.value_or("")));
  if (epoch) WEFT_TRY_VOID(machine_.check(owner, *epoch, now));
  const bool commits = machine_.state(now) == UpdateState::kStaged && machine_.owner() == owner;
  if (commits && rules_.patch_mode && wish.on_update == OnUpdate::kFinish) {
    return Error(ErrorCode::kConflict,
                 "finish needs the old weights until sequences end, and there is no memory for a "
                 "second set: continue, recompute or abort",
                 "on_update");
  }
  if (commits) WEFT_TRY_VOID(check_serving(wish.if_match));
  WEFT_TRY(const auto step, machine_.finish(owner, wish.label, now));
  if (step == UpdateMachine::FinishStep::kRename && wish.label)
    residents_[serving_].name.label = *wish.label;
  if (step != UpdateMachine::FinishStep::kCommit) return step;
  Resident resident = *staging_->resident;
  resident.name.label = wish.label.value_or(serving().name.label);
  resident.provenance = wish.provenance;
  hand_over({.epoch = staging_->epoch,
             .set = staging_->set,
             .version = {},
             .on_update = wish.on_update,
             .in_place = rules_.patch_mode,
             .tensors = layout_->tensors().size(),
             .bytes = staging_->ledger.total_bytes()},
            std::move(resident));
  return step;
}

Result<void> ReceiverMachine::check_serving(const std::optional<std::string>& expected) const {
  if (!expected || *expected == serving().name.id) return {};
  return Error(ErrorCode::kPreconditionFailed,
               fmt::format("{} serves, not {}", serving().name.id, *expected));
}

Result<UpdateMachine::FinishStep> ReceiverMachine::roll_back(
    std::string_view owner, const std::string& id, const std::optional<std::string>& expected,
    const CommitWish& wish, Instant now) {
  WEFT_TRY_VOID(check_label(wish.label.value_or("")));
  const bool is_under_way = machine_.state(now) == UpdateState::kCommitting;
  if (!is_under_way) WEFT_TRY_VOID(check_serving(expected));
  if (!is_under_way && id == serving().name.id) return UpdateMachine::FinishStep::kRepeat;
  const Resident* const old = retired();
  const auto is = [&id](const Resident* resident) { return resident && resident->name.id == id; };
  if (!is(&serving()) && !is(old) && !is(staged(now))) {
    return Error(ErrorCode::kNotFound, fmt::format("no version {} here to roll back to", id));
  }
  // Refuses, too, what is staged or about to be retired: it is not the time.
  WEFT_TRY(const auto step, machine_.roll_back(owner, id, now));
  if (step != UpdateMachine::FinishStep::kCommit) return step;
  Resident resident = *old;
  if (wish.label) resident.name.label = *wish.label;
  hand_over({.epoch = machine_.epoch(),
             .set = spare(),
             .version = {},
             .on_update = wish.on_update,
             .is_rollback = true,
             .tensors = layout_->tensors().size(),
             .bytes = layout_->payload_bytes()},
            std::move(resident));
  return step;
}

void ReceiverMachine::hand_over(Handover handover, Resident resident) {
  handover.version = resident.name;
  handover.new_files = !same_files(resident, serving());
  patching_ = handover.in_place;
  if (!handover.in_place) unreleased_before_ = std::exchange(unreleased_, handover.epoch);
  handover_ = std::move(handover);
  next_ = std::move(resident);
}

bool ReceiverMachine::may_hand_over() const {
  return !handover_.in_place || readers_[serving_] == 0;
}

void ReceiverMachine::committed() {
  machine_.committed();
  patching_ = false;
  if (handover_.in_place) {
    before_patch_ = residents_[serving_];
    if (!staging_->is_verified) unconfirmed_ = staging_;
  }
  serving_ = handover_.set;
  residents_[serving_] = std::move(next_);
}

void ReceiverMachine::not_committed(std::string_view reason) {
  machine_.not_committed(reason);
  patching_ = false;
  if (!handover_.in_place) unreleased_ = unreleased_before_;
}

void ReceiverMachine::released(Epoch epoch) {
  if (epoch == unreleased_) unreleased_ = 0;
  if (epoch == unreleased_before_) unreleased_before_ = 0;
}

const Handover& ReceiverMachine::revoked() {
  residents_[serving_].name.corrupt = true;
  hand_over({.set = serving_, .version = {}, .in_place = true}, before_patch_);
  machine_.take_back(fmt::format("{} was found corrupt and taken back: send it in full",
                                 residents_[serving_].name.id));
  return handover_;
}

void ReceiverMachine::undone() {
  patching_ = false;
  residents_[serving_] = std::move(next_);
  unconfirmed_ = nullptr;
}

Result<void> ReceiverMachine::rename(const std::string& label) {
  WEFT_TRY_VOID(check_label(label));
  residents_[serving_].name.label = label;
  return {};
}

Result<SetIndex> ReceiverMachine::begin_read(const std::string& id) {
  WEFT_TRY(const SetIndex set, begin_own_read(id));
  if (!rules_.patch_mode) return set;
  end_read(set);
  return Error(
      ErrorCode::kConflict,
      fmt::format(
          "{} is patched in place when a version comes, so its bytes are not given out here", id));
}

Result<SetIndex> ReceiverMachine::begin_own_read(const std::string& id) {
  const Resident* const old = retired();
  const bool is_serving = id == serving().name.id;
  if (!is_serving && (old == nullptr || old->name.id != id)) {
    return Error(ErrorCode::kNotFound,
                 fmt::format("no version {} here, only {}{}", id, serving().name.id,
                             old == nullptr ? "" : " and " + old->name.id));
  }
  const Resident& resident = is_serving ? serving() : *old;
  if (resident.name.converted) {
    return Error(ErrorCode::kConflict,
                 fmt::format("{} was converted on receipt: its bytes here are not its own", id));
  }
  if (patching_ || unconfirmed_) {
    return Error(ErrorCode::kOverloaded, fmt::format("{} is still being patched", id));
  }
  const SetIndex set = is_serving ? serving_ : spare();
  ++readers_[set];
  return set;
}

std::optional<SetIndex> ReceiverMachine::try_begin_read_serving() {
  if (patching_) return std::nullopt;
  ++readers_[serving_];
  return serving_;
}

void ReceiverMachine::end_read(SetIndex set) {
  --readers_[set];
  if (set == spare() && readers_[set] == 0) cut_readers_at_.reset();
}

const Resident* ReceiverMachine::retired() const {
  if (rules_.patch_mode || !residents_[spare()].content) return nullptr;
  return &residents_[spare()];
}

const Resident* ReceiverMachine::staged(Instant now) {
  const UpdateState state = machine_.state(now);
  const bool is_there = (state == UpdateState::kStaged || state == UpdateState::kCommitting) &&
                        staging_ && staging_->epoch == machine_.epoch() && staging_->resident;
  return is_there ? &*staging_->resident : nullptr;
}

}  // namespace weft
