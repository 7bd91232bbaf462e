#pragma once
// ReceiverMachine: all that a receiver of weights decides. It joins the update machine to the plan
// and ledger of what is being staged and to what the two sets of weights hold: which one serves,
// which is staged or retired, and who still reads it. No sockets, clocks, threads or memory: time
// comes in as a value, and what is to be done to memory goes out as one. One thread; what a Staging
// says is immutable may be read by others.
//
// There are two sets, 0 and 1; in patch mode only 0, which is written at the commit alone.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/skeleton.h"
#include "weft/protocol/staging.h"
#include "weft/protocol/update_machine.h"
#include "weft/tensor/on_update.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// The `param` of that error: it is worth trying again.
inline constexpr std::string_view kOnThirdParam = "on_third";

struct ReceiverRules {
  std::chrono::milliseconds lease{300'000};
  bool tied_embeddings = false;  // lm_head.weight may come, as the embedding's twin
  bool patch_mode = false;       // no second set: what changes is kept as patches until the commit
  std::uint64_t max_patch_bytes = 0;  // of changes that one staging keeps (patch mode)
  OnThird on_third = OnThird::kWait;
  std::chrono::milliseconds reader_grace{5'000};  // for readers of a set about to be overwritten
};

// What a frame of an upload brings.
enum class FrameForm {
  kWhole,    // the whole block, encoded somehow
  kChanges,  // what differs from the same block of the base
};

// One writer's claim of a block.
struct BlockClaim {
  enum class Use {
    kDiscard,  // read it and drop it: the block is there, or another writer has it
    kStore,    // put it in its place in the set (a file: in memory of the staging's own)
    kHash,     // only its digest counts
    kScatter,  // copy the base's block to its place, then write the changes over it
    kKeep,     // keep what changes until the commit
  };
  BlockPlace place;
  BlockLedger::Claim found;
  Use use;
  std::uint64_t payload_bytes;
  std::uint64_t kept_bytes = 0;  // kKeep: its part of max_patch_bytes
};

// How a staging begins.
struct Opening {
  Epoch epoch = 0;       // 0: it waits. Call again after released(), end_read() or confirmed()
  bool resumed = false;  // it was open already: the same call again
  bool evict = false;    // ask the target to let go of the retired set
};

struct CommitWish {
  std::optional<std::string> label{};  // nothing: it stays
  OnUpdate on_update = OnUpdate::kContinue;
  Provenance provenance{};
  std::optional<std::string> if_match{};  // the id that serves now; else kPreconditionFailed
};

// A set that takes over.
struct Handover {
  Epoch epoch = 0;
  SetIndex set = 0;
  VersionName version;
  OnUpdate on_update = OnUpdate::kContinue;
  bool is_rollback = false;
  bool in_place = false;   // patch mode: the staging's patches are written over the serving set
  bool new_files = false;  // its files are not those of what serves
  std::uint64_t tensors = 0, bytes = 0;
};

class ReceiverMachine {
 public:
  // `serving` is in set 0.
  ReceiverMachine(std::shared_ptr<const WeightLayout> layout, ReceiverRules rules,
                  Resident serving);

  // Each call that fails changes nothing. Order errors are kConflict, memory that has to wait is
  // kOverloaded; UpdateMachine has more.
  Result<void> start(std::string_view owner, Instant now) { return machine_.start(owner, now); }
  Result<void> check_started(std::string_view owner, Instant now) {
    return machine_.check_started(owner, now);
  }
  // Errors: kInvalidArgument (plan_offer); kNotFound for a base that does not serve; kConflict for
  // a base that is converted, and where OnThird says so; kTooLarge, with the numbers, for what
  // patch mode cannot hold.
  Result<Opening> open_upload(std::string_view owner, const UploadOffer& offer, Instant now);
  Result<Opening> open_body(std::string_view owner, Instant now);
  Result<Opening> open_path(std::string_view owner, std::string_view path, Instant now);
  // Why an Opening waits, for those who cannot.
  Error waiting_reason() const;
  // The entries of a body or path: tensors, in this order.
  Result<void> plan_body(Epoch epoch, std::span<const TensorSpec> tensors, Instant now);
  Result<UpdateMachine::UpdateStep> update(std::string_view owner, Instant now) {
    return machine_.update(owner, now);
  }
  // An update whose source may not be read.
  void refuse(std::string_view owner, std::string_view reason, Instant now) {
    machine_.refuse(owner, reason, now);
  }
  Result<void> abort(std::string_view owner, Epoch epoch, Instant now) {
    return machine_.abort(owner, epoch, now);
  }
  Result<void> check(std::string_view owner, Epoch epoch, Instant now) {
    return machine_.check(owner, epoch, now);
  }
  Result<void> touch(Epoch epoch, Instant now) { return machine_.touch(epoch, now); }
  Result<void> hold(Epoch epoch, Instant now) { return machine_.hold(epoch, now); }
  void release(Epoch epoch, Instant now) { machine_.release(epoch, now); }
  void fail(Epoch epoch, std::string_view reason) { machine_.fail(epoch, reason); }
  void shutdown() { machine_.shutdown(); }

  // The staging of `epoch`, or the one just committed. Errors: kConflict.
  Result<std::shared_ptr<Staging>> staging(Epoch epoch);
  // The blocks that the serving version has and that need not come: claim each, copy it (a file's
  // from the serving files), settle it with its digest. In patch mode those of tensors are settled
  // already: a claim does not find them open.
  static std::vector<BlockPlace> copies(const Staging& staging);
  // Claims a block for one writer. Unless found is kYours there is nothing to settle. Errors:
  // kInvalidArgument for a place outside the grid, or changes of what has no base; kTooLarge when
  // patches would be too many; kConflict.
  Result<BlockClaim> claim(Staging& staging, BlockPlace place, FrameForm form,
                           std::uint64_t payload_bytes, Instant now);
  // kKeep: what is kept of the block takes `kept_bytes`, not its payload's. Errors, and then the
  // claim goes on: kTooLarge.
  Result<void> keep(Staging& staging, BlockClaim& claim, std::uint64_t kept_bytes) const;
  // Takes the block as verified. `computed`: the value of what came or was made of it; nothing for
  // a payload that is kept unverified. `expected`: what the sender says. Errors, and then the claim
  // goes on: kCorrupt when they differ, or from what was announced; kTooLarge for a whole block
  // that changes in patch mode. Errors, and then it is over: kConflict when the staging is.
  Result<void> settle(Staging& staging, const BlockClaim& claim,
                      const std::optional<Digest>& computed, const std::optional<Digest>& expected,
                      Instant now);
  // The block is open again.
  void give_up(Staging& staging, const BlockClaim& claim, Instant now);

  // Sealing has three steps, so that the middle one needs no lock: begin, compose (pure, takes time
  // in proportion to the number of blocks), end. It is sealed already if it has a resident; then
  // there is nothing to end.
  Result<std::shared_ptr<Staging>> begin_seal(std::string_view owner, Epoch epoch, Instant now);
  static Result<Resident> compose(const Staging& staging, const WeightLayout& layout) {
    return compose_version(staging, layout);
  }
  // An error drops the staging.
  Result<void> end_seal(Staging& staging, Result<Resident> resident, Instant now);

  // `epoch`, where given, must be what it would commit, or what it did. kCommit: hand over
  // handover() when may_hand_over(), then call committed() or not_committed().
  Result<UpdateMachine::FinishStep> finish(std::string_view owner, std::optional<Epoch> epoch,
                                           const CommitWish& wish, Instant now);
  // The retired version serves again; the serving one: kRepeat. Errors: kNotFound naming an id that
  // is not here, kPreconditionFailed unless `expected` serves.
  Result<UpdateMachine::FinishStep> roll_back(std::string_view owner, const std::string& id,
                                              const std::optional<std::string>& expected,
                                              const CommitWish& wish, Instant now);
  const Handover& handover() const { return handover_; }
  bool may_hand_over() const;
  void committed();
  void not_committed(std::string_view reason);
  // Nobody runs on the set any more that served before the handover of `epoch`.
  void released(Epoch epoch);
  // In patch mode, after committed(): the blocks that changed have been hashed again. Until then no
  // staging begins. On a mismatch the patch is taken back first: revoked(), then undone().
  void confirmed() { unconfirmed_ = nullptr; }
  // What serves is called corrupt until undone(); the Handover is to the version before.
  const Handover& revoked();
  void undone();
  const std::shared_ptr<Staging>& unconfirmed() const { return unconfirmed_; }

  // Errors: kInvalidArgument for a label that is too long.
  Result<void> rename(const std::string& label);

  // Readers of a set's bytes from outside. Errors: kNotFound naming the id; kConflict for a
  // converted version, and in patch mode.
  Result<SetIndex> begin_read(const std::string& id);
  // The same from inside, in patch mode too: a commit waits until the read has ended. Errors:
  // kOverloaded while what serves is about to be patched, or may be taken back.
  Result<SetIndex> begin_own_read(const std::string& id);
  // Of what serves, whatever it is; nothing while it is about to be patched.
  std::optional<SetIndex> try_begin_read_serving();
  void end_read(SetIndex set);
  // When the readers of the set that a staging waits for are to be cut.
  const std::optional<Instant>& cut_readers_at() const { return cut_readers_at_; }

  const Resident& serving() const { return residents_[serving_]; }
  SetIndex serving_set() const { return serving_; }
  // Null: there is none.
  const Resident* retired() const;
  // What is sealed and not served yet. Null: there is none.
  const Resident* staged(Instant now);
  const ReceiverRules& rules() const { return rules_; }
  const WeightLayout& layout() const { return *layout_; }
  UpdateState state(Instant now) { return machine_.state(now); }
  const UpdateMachine& machine() const { return machine_; }

 private:
  enum class Wait { kNone, kConfirmation, kSequences, kReaders };

  SetIndex spare() const { return rules_.patch_mode ? serving_ : 1 - serving_; }
  Wait waiting() const;
  Result<Opening> wait(Instant now);
  Result<Opening> opened(const Result<Epoch>& epoch, std::shared_ptr<Staging> staging, Instant now);
  void settle_tied_head(Staging& staging) const;
  Result<void> check_base(const UploadOffer& offer) const;
  Result<void> check_patchable(const Staging& staging) const;
  Result<BlockClaim::Use> use_of(const Staging& staging, BlockPlace place, FrameForm form) const;
  void hand_over(Handover handover, Resident resident);
  Result<void> check_serving(const std::optional<std::string>& expected) const;
  Error too_large() const;

  const std::shared_ptr<const WeightLayout> layout_;
  const ReceiverRules rules_;
  UpdateMachine machine_;
  std::array<Resident, 2> residents_;
  std::array<unsigned, 2> readers_{};
  SetIndex serving_ = 0;
  std::shared_ptr<Staging> staging_;  // of machine_'s epoch, or of the last one
  std::string path_;                  // of the staging, where it is read from one
  Handover handover_;
  Resident next_;          // what handover_ makes of its set
  bool patching_ = false;  // the serving set is about to be written
  Epoch unreleased_ = 0;   // the handover whose retired set is still run on
  Epoch unreleased_before_ = 0;
  std::optional<Instant> cut_readers_at_;
  std::shared_ptr<Staging> unconfirmed_;
  Resident before_patch_;
};

}  // namespace weft
