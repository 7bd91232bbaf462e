#include "weft/protocol/update_machine.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "weft/base/wording.h"

namespace weft {

std::string_view update_state_name(UpdateState state) {
  switch (state) {
    case UpdateState::kIdle:
      return "idle";
    case UpdateState::kOpen:
      return "open";
    case UpdateState::kStaging:
      return "staging";
    case UpdateState::kStaged:
      return "staged";
    case UpdateState::kCommitting:
      return "committing";
  }
  return "";
}

Result<void> UpdateMachine::start(std::string_view owner, Instant now) {
  WEFT_TRY_VOID(enter(owner, now));
  if (state_ != UpdateState::kIdle && state_ != UpdateState::kOpen) {
    return conflict("finish it or abort it before the next start");
  }
  take(owner, UpdateState::kOpen, now);
  return {};
}

Result<void> UpdateMachine::check_started(std::string_view owner, Instant now) {
  WEFT_TRY_VOID(enter(owner, now));
  if (state_ == UpdateState::kIdle) return conflict("start an update first");
  renew(now);
  return {};
}

Result<UpdateMachine::Opened> UpdateMachine::open_upload(std::string_view owner,
                                                         const Digest& skeleton, bool replace,
                                                         Instant now, bool may_resume) {
  WEFT_TRY_VOID(enter(owner, now));
  const bool staged = state_ == UpdateState::kStaging || state_ == UpdateState::kStaged;
  if (staged && may_resume && skeleton_ == skeleton) {
    renew(now);
    return Opened{epoch_, true};
  }
  if (staged && replace && source_ == Source::kUpload) {
    close("another upload of its owner replaced it");
  } else if (staged) {
    return conflict("finish it or abort it before the next upload");
  }
  WEFT_TRY(const Epoch epoch, begin_staging(owner, Source::kUpload, now));
  if (epoch != 0) skeleton_ = skeleton;
  return Opened{epoch, false};
}

Result<Epoch> UpdateMachine::open_body(std::string_view owner, Instant now) {
  WEFT_TRY_VOID(enter(owner, now));
  if (state_ == UpdateState::kStaging || state_ == UpdateState::kStaged) {
    return conflict("finish it or abort it before the next upload");
  }
  return begin_staging(owner, Source::kBody, now);
}

Result<Epoch> UpdateMachine::open_path(std::string_view owner, Instant now) {
  WEFT_TRY_VOID(enter(owner, now));
  if (state_ == UpdateState::kIdle) return conflict("start an update first");
  if (state_ == UpdateState::kStaging) return conflict("finish it or abort it before the next one");
  return begin_staging(owner, Source::kPath, now);
}

Result<UpdateMachine::UpdateStep> UpdateMachine::update(std::string_view owner, Instant now) {
  WEFT_TRY_VOID(enter(owner, now));
  switch (state_) {
    case UpdateState::kIdle:
      return conflict("start an update first");
    case UpdateState::kOpen:
      renew(now);
      return UpdateStep::kNothing;
    case UpdateState::kStaging:
      if (source_ != Source::kUpload) return conflict("its bytes are still arriving");
      renew(now);
      return UpdateStep::kSeal;
    case UpdateState::kStaged:
      renew(now);
      return UpdateStep::kStaged;
    case UpdateState::kCommitting:
      break;
  }
  return conflict("start the next update when it is done");
}

Result<UpdateMachine::FinishStep> UpdateMachine::finish(std::string_view owner,
                                                        const std::optional<std::string>& label,
                                                        Instant now) {
  const Finish call{std::string(owner), label, ""};
  if (!shut_down_ && state_ == UpdateState::kCommitting && finish_ == call)
    return FinishStep::kJoin;
  WEFT_TRY_VOID(enter(owner, now));
  switch (state_) {
    case UpdateState::kIdle:
      return finish_idle(call);
    case UpdateState::kOpen:
      close("it was finished");
      // A finish that changed nothing is not one that could be repeated: vLLM calls it out of
      // order.
      if (label) finish_ = call;
      return FinishStep::kRename;
    case UpdateState::kStaging:
      return conflict("it is not sealed: send what is missing and seal it, or abort it");
    case UpdateState::kStaged:
      state_ = UpdateState::kCommitting;
      finish_ = call;
      return FinishStep::kCommit;
    case UpdateState::kCommitting:
      break;
  }
  return conflict("another finish of it is being done");
}

Result<UpdateMachine::FinishStep> UpdateMachine::finish_idle(const Finish& call) const {
  if (finish_ == call) return FinishStep::kRepeat;
  return conflict("start an update first");
}

Result<UpdateMachine::FinishStep> UpdateMachine::roll_back(std::string_view owner,
                                                           std::string_view id, Instant now) {
  const Finish call{std::string(owner), std::nullopt, std::string(id)};
  if (!shut_down_ && state_ == UpdateState::kCommitting && finish_ == call)
    return FinishStep::kJoin;
  WEFT_TRY_VOID(enter(owner, now));
  if (state_ != UpdateState::kIdle) return conflict("finish it or abort it before rolling back");
  take(owner, UpdateState::kCommitting, now);
  holds_ = 0;
  epoch_ = ++last_epoch_;
  finish_ = call;
  return FinishStep::kCommit;
}

Result<void> UpdateMachine::abort(std::string_view owner, Epoch epoch, Instant now) {
  expire(now);
  if (epoch != epoch_ || epoch == 0) {
    if (epoch == 0 || epoch > last_epoch_ || epoch == committed_epoch_) {
      return conflict("there is nothing to abort");
    }
    return {};
  }
  WEFT_TRY_VOID(enter(owner, now));
  if (state_ == UpdateState::kCommitting) return conflict("it can no longer be aborted");
  close("it was aborted");
  return {};
}

Result<void> UpdateMachine::check(std::string_view owner, Epoch epoch, Instant now) {
  expire(now);
  if (epoch != 0 && epoch == committed_epoch_ && state_ == UpdateState::kIdle) return {};
  WEFT_TRY_VOID(check_epoch(epoch, now));
  WEFT_TRY_VOID(enter(owner, now));
  renew(now);
  return {};
}

Result<void> UpdateMachine::touch(Epoch epoch, Instant now) {
  WEFT_TRY_VOID(check_epoch(epoch, now));
  renew(now);
  return {};
}

Result<void> UpdateMachine::begin_write(Epoch epoch, Instant now) {
  WEFT_TRY_VOID(check_epoch(epoch, now));
  if (state_ != UpdateState::kStaging) return conflict("it is sealed: its bytes are fixed");
  renew(now);
  ++writers_;
  return {};
}

void UpdateMachine::end_write(Epoch epoch, Instant now) {
  expire(now);
  if (epoch == epoch_) {
    renew(now);
    --writers_;
  } else {
    --stale_writers_;
  }
}

Result<void> UpdateMachine::hold(Epoch epoch, Instant now) {
  WEFT_TRY_VOID(check_epoch(epoch, now));
  ++holds_;
  return {};
}

void UpdateMachine::release(Epoch epoch, Instant now) {
  if (epoch != epoch_ || epoch == 0) return;
  --holds_;
  renew(now);
}

Result<void> UpdateMachine::seal(Epoch epoch, std::uint64_t missing_blocks, Instant now) {
  WEFT_TRY_VOID(check_epoch(epoch, now));
  if (state_ == UpdateState::kStaging) {
    if (missing_blocks != 0) {
      return conflict(
          fmt::format("{} of its blocks are missing: send them, then seal", missing_blocks));
    }
    state_ = UpdateState::kStaged;
  }
  renew(now);
  return {};
}

void UpdateMachine::fail(Epoch epoch, std::string_view reason) {
  if (epoch == 0 || epoch != epoch_ || state_ == UpdateState::kCommitting) return;
  close(fmt::format("it failed: {}", reason));
}

void UpdateMachine::refuse(std::string_view owner, std::string_view reason, Instant now) {
  if (!enter(owner, now)) return;
  if (state_ == UpdateState::kOpen || state_ == UpdateState::kStaged)
    close(fmt::format("it failed: {}", reason));
}

void UpdateMachine::committed() {
  WEFT_CHECK(state_ == UpdateState::kCommitting);
  const Epoch epoch = epoch_;
  auto finish = std::move(finish_);
  close("it was committed");
  committed_epoch_ = epoch;
  finish_ = std::move(finish);
}

void UpdateMachine::not_committed(std::string_view reason) {
  WEFT_CHECK(state_ == UpdateState::kCommitting);
  close(fmt::format("it could not take over: {}", reason));
}

void UpdateMachine::take_back(std::string_view reason) {
  committed_epoch_ = 0;
  if (state_ == UpdateState::kIdle) close(reason);
}

UpdateState UpdateMachine::state(Instant now) {
  expire(now);
  return state_;
}

std::chrono::milliseconds UpdateMachine::lease_left(Instant now) const {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - now);
  return holds_ > 0 || state_ == UpdateState::kCommitting ? lease_
                                                          : std::max(left, milliseconds{0});
}

// The way into every call: who may make it, and what time has done meanwhile.
Result<void> UpdateMachine::enter(std::string_view owner, Instant now) {
  if (shut_down_) return Error(ErrorCode::kOverloaded, "the server is shutting down");
  expire(now);
  if (state_ == UpdateState::kIdle || owner == owner_) return {};
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(lease_left(now)).count();
  return Error(
      ErrorCode::kConflict,
      fmt::format("the update is held by `{}`, whose lease runs {} s more unless it is heard from",
                  owner_, seconds));
}

Result<Epoch> UpdateMachine::begin_staging(std::string_view owner, Source source, Instant now) {
  if (state_ == UpdateState::kCommitting) return conflict("start the next update when it is done");
  if (stale_writers_ + writers_ > 0) {
    return Error(ErrorCode::kOverloaded,
                 fmt::format("the upload before still has {}: try again when it has none",
                             counted(stale_writers_ + writers_, "connection")));
  }
  if (gate_closed_) {
    renew(now);  // a call that waits holds the lease
    return Epoch{0};
  }
  take(owner, UpdateState::kStaging, now);
  source_ = source;
  skeleton_.reset();
  holds_ = 0;
  epoch_ = ++last_epoch_;
  return epoch_;
}

Result<void> UpdateMachine::check_epoch(Epoch epoch, Instant now) {
  if (shut_down_) return Error(ErrorCode::kOverloaded, "the server is shutting down");
  expire(now);
  if (epoch != 0 && epoch == epoch_) return {};
  return Error(ErrorCode::kConflict, epoch == last_epoch_
                                         ? fmt::format("this upload is over: {}", closed_because_)
                                         : "this upload is over: a later one took its place");
}

void UpdateMachine::expire(Instant now) {
  const bool can_expire =
      state_ != UpdateState::kIdle && state_ != UpdateState::kCommitting && holds_ == 0;
  if (can_expire && now >= deadline_) close("its lease ran out");
}

void UpdateMachine::take(std::string_view owner, UpdateState state, Instant now) {
  owner_ = owner;
  state_ = state;
  finish_.reset();
  renew(now);
}

void UpdateMachine::close(std::string_view reason) {
  state_ = UpdateState::kIdle;
  owner_.clear();
  skeleton_.reset();
  finish_.reset();
  epoch_ = 0;
  holds_ = 0;
  stale_writers_ += std::exchange(writers_, 0);
  closed_because_ = reason;
}

Error UpdateMachine::conflict(std::string_view what) const {
  if (state_ == UpdateState::kIdle) {
    return Error(ErrorCode::kConflict,
                 fmt::format("no update is open ({}): {}", closed_because_, what));
  }
  return Error(ErrorCode::kConflict, fmt::format("the update of `{}` is {}: {}", owner_,
                                                 update_state_name(state_), what));
}

}  // namespace weft
