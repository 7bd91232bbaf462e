#pragma once
// UpdateMachine: the states of one receiver's update, from the first call to the commit. It decides
// who owns the update, which call is in order, what a repeat means, and when staging memory may be
// written. No sockets, clocks, threads or memory: time comes in as a value, effects are the
// caller's. One thread.
//
//   idle -> open -> staging -> staged -> committing -> idle       docs/protocol.md has every event
//                                                                 in every state.
// One owner at a time. Each time staging begins, the update gets a new epoch, and whoever still
// holds an older one is refused: that fences late writers.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/digest/digest.h"

namespace weft {

using Instant = std::chrono::steady_clock::time_point;
// Counts the stagings of one receiver; 0 is none of them.
using Epoch = std::uint64_t;

enum class UpdateState { kIdle, kOpen, kStaging, kStaged, kCommitting };
std::string_view update_state_name(UpdateState state);

class UpdateMachine {
 public:
  explicit UpdateMachine(std::chrono::milliseconds lease) : lease_(lease) {}

  // Where the bytes of a staging come from.
  enum class Source { kUpload, kBody, kPath };
  struct Opened {
    Epoch epoch;
    bool resumed;  // the owner's upload of the same skeleton was open: it goes on
  };
  enum class UpdateStep {
    kNothing,  // nothing was pushed: zero tensors
    kSeal,     // an upload is open: call seal()
    kStaged,   // it is staged already
  };
  enum class FinishStep {
    kCommit,  // hand the staged set over, then call committed()
    kRename,  // nothing was staged: move the label alone
    kRepeat,  // this very call was done before: answer as then
    kJoin,    // this very call is being done: answer when it is
  };

  // The calls. `owner` holds the update or gets it; anyone else gets kConflict that names the owner
  // and the rest of the lease. A call that fails changes nothing. kOverloaded: try again in a
  // moment.
  Result<void> start(std::string_view owner, Instant now);
  // For an update whose bytes are fetched from elsewhere: it needs start(), too. kConflict.
  Result<void> check_started(std::string_view owner, Instant now);
  // Where a staging would begin while the gate is closed (its memory is still read), the epoch is 0
  // and nothing has changed but that the lease of an update that is open is renewed.
  void close_gate(bool closed) { gate_closed_ = closed; }
  // A new upload, or the one of the same `skeleton` that the owner has open, unless it may not be
  // resumed. `replace` drops another one of the owner's.
  Result<Opened> open_upload(std::string_view owner, const Digest& skeleton, bool replace,
                             Instant now, bool may_resume = true);
  // A whole file as one body.
  Result<Epoch> open_body(std::string_view owner, Instant now);
  // update {"path"}: needs start(). A staged set is staged anew.
  Result<Epoch> open_path(std::string_view owner, Instant now);
  // update {}: what was pushed is it.
  Result<UpdateStep> update(std::string_view owner, Instant now);
  Result<FinishStep> finish(std::string_view owner, const std::optional<std::string>& label,
                            Instant now);
  // The version `id`, which is whole and not being staged, takes over: kCommit or kJoin. Needs
  // kIdle; has an epoch of its own.
  Result<FinishStep> roll_back(std::string_view owner, std::string_view id, Instant now);
  // Drops the staging `epoch`. Again: fine.
  Result<void> abort(std::string_view owner, Epoch epoch, Instant now);

  // What a staging goes through. kConflict when `epoch` is over, with the reason.
  // `owner` may use `epoch`; renews the lease. The epoch just committed is fine too: its calls are
  // repeats.
  Result<void> check(std::string_view owner, Epoch epoch, Instant now);
  // Bytes came: renews the lease.
  Result<void> touch(Epoch epoch, Instant now);
  // Someone writes staging memory, from here to end_write(). It is not given to the next staging
  // before.
  Result<void> begin_write(Epoch epoch, Instant now);
  void end_write(Epoch epoch, Instant now);
  // A call in progress holds the lease, from here to release().
  Result<void> hold(Epoch epoch, Instant now);
  void release(Epoch epoch, Instant now);
  // All bytes are there and verified. kConflict while `missing_blocks` is not 0. Again: fine.
  Result<void> seal(Epoch epoch, std::uint64_t missing_blocks, Instant now);
  // What was staged is dropped and the update is closed. Ignored when `epoch` is over.
  void fail(Epoch epoch, std::string_view reason);
  // An update whose source may not be read: closes what the owner has open or staged.
  void refuse(std::string_view owner, std::string_view reason, Instant now);
  // The set of the epoch that finish() said to commit is served. The only way the serving version
  // changes.
  void committed();
  // It is not, and will not be: the old one serves on.
  void not_committed(std::string_view reason);
  // What was committed last serves no longer, and repeats of that are refused with the reason.
  void take_back(std::string_view reason);
  // From now on every call is kOverloaded.
  void shutdown() { shut_down_ = true; }

  // What is so at `now`.
  UpdateState state(Instant now);
  const std::string& owner() const { return owner_; }  // "" when idle
  Epoch epoch() const { return epoch_; }               // 0 when idle or open
  Epoch committed_epoch() const { return committed_epoch_; }
  std::chrono::milliseconds lease_left(Instant now) const;

 private:
  struct Finish {
    std::string owner;
    std::optional<std::string> label;
    std::string rollback{};  // the id
    bool operator==(const Finish&) const = default;
  };

  Result<void> enter(std::string_view owner, Instant now);
  Result<Epoch> begin_staging(std::string_view owner, Source source, Instant now);
  Result<void> check_epoch(Epoch epoch, Instant now);
  Result<FinishStep> finish_idle(const Finish& call) const;
  void expire(Instant now);
  void renew(Instant now) { deadline_ = now + lease_; }
  void take(std::string_view owner, UpdateState state, Instant now);
  void close(std::string_view reason);
  Error conflict(std::string_view what) const;

  std::chrono::milliseconds lease_;
  UpdateState state_ = UpdateState::kIdle;
  std::string owner_;
  Instant deadline_{};
  Source source_ = Source::kUpload;
  std::optional<Digest> skeleton_;
  Epoch epoch_ = 0;
  Epoch last_epoch_ = 0;
  Epoch committed_epoch_ = 0;
  unsigned holds_ = 0;
  unsigned writers_ = 0;          // of epoch_
  unsigned stale_writers_ = 0;    // of earlier ones
  std::optional<Finish> finish_;  // being committed, or the last one done
  std::string closed_because_ = "no update was started";
  bool gate_closed_ = false;
  bool shut_down_ = false;
};

}  // namespace weft
