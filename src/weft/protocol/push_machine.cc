#include "weft/protocol/push_machine.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/base/wording.h"
#include "weft/protocol/waits.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Between tries while another connection has a block of ours: as Retry-After.
constexpr milliseconds kBusyWait{1'000};

// What the server has of the upload is to be asked again, then it goes on.
bool can_resume(ErrorCode code) {
  return is_passing(code) || code == ErrorCode::kCorrupt || code == ErrorCode::kConflict ||
         code == ErrorCode::kNotFound;
}

}  // namespace

PushMachine::PushMachine(std::vector<std::uint64_t> entry_sizes_bytes, const Options& options)
    : sizes_bytes_(std::move(entry_sizes_bytes)), options_(options), with_base_(options.base) {
  WEFT_CHECK(options.writer < options.writers);
  for (const std::uint64_t size : sizes_bytes_) {
    begins_bytes_.push_back(total_bytes_);
    total_bytes_ += size;
  }
}

void PushMachine::serving(const std::optional<Serving>& answer) {
  WEFT_CHECK(step_ == Step::kAskServing);
  step_ = Step::kOpen;
  if (!answer) return;
  // It is served and was not before: the commit did happen.
  if (committing_ && answer->id == id_ && !(before_ && before_->id == id_)) {
    step_ = Step::kDone;
    return;
  }
  const bool same_process = before_ && before_->instance == answer->instance;
  if (same_process && before_->id != answer->id && !leads() && share_sent_) {
    step_ = Step::kDone;  // what we sent was taken, and the first writer has gone on
    return;
  }
  if (same_process && before_->id != answer->id) {
    // Whoever lost their turn to another version must not undo it.
    return fail(Error(ErrorCode::kConflict,
                      fmt::format("another version was committed meanwhile: {}", answer->id)));
  }
  before_ = *answer;
}

void PushMachine::opened(const Result<Opened>& answer, std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kOpen);
  if (!answer) {
    const ErrorCode code = answer.error().code();
    // It has no such base, or converted it; or its 409 is for another reason, and comes again.
    const bool may_be_base =
        code == ErrorCode::kNotFound || (code == ErrorCode::kConflict && !retry_after);
    if (may_be_base && with_base_ && !options_.partial) {
      with_base_ = false;  // in full, then
      return;
    }
    // What else the server refuses here it would refuse again, unless it says when to come back.
    const bool is_final = !is_passing(code) && !(code == ErrorCode::kConflict && retry_after);
    return is_final ? fail(answer.error()) : reopen(answer.error(), retry_after);
  }
  auto blocks = places(answer->missing);
  if (!blocks) return fail(blocks.error());
  std::uint64_t missing_bytes = 0;
  for (const BlockPlace& place : *blocks) missing_bytes += size_of(place);
  // Not one that we sent to before: what it has may be of another version. Should the call that
  // drops it be lost, it comes again.
  const bool is_stale = !options_.announced && options_.writers == 1 && answer->upload != upload_ &&
                        missing_bytes < total_bytes_;
  if (is_stale) {
    if (++stale_ > options_.retries) {
      return fail(Error(ErrorCode::kConflict,
                        fmt::format("upload {}, of the same names and shapes, cannot be dropped",
                                    answer->upload)));
    }
    upload_ = answer->upload;
    step_ = Step::kDrop;
    then_ = Step::kOpen;
    return;
  }
  begin_round(*answer, std::move(*blocks));
}

void PushMachine::begin_round(const Opened& answer, std::vector<BlockPlace> blocks) {
  const bool is_new = !upload_.empty() && upload_ != answer.upload;
  if (is_new) best_verified_bytes_ = 0;
  if (is_new && ++lost_ > options_.retries) {
    upload_ = answer.upload;
    return fail(
        Error(ErrorCode::kDisconnected, "the server forgot the upload " + counted(lost_, "time")));
  }
  if (upload_.empty()) skipped_bytes_ = answer.verified_bytes;
  upload_ = answer.upload;
  verified_bytes_ = answer.verified_bytes;
  if (verified_bytes_ > best_verified_bytes_) {  // the last try brought something
    best_verified_bytes_ = verified_bytes_;
    tries_ = 0;
    wishes_ = 0;
  }
  if (options_.writers > 1) choose_share(blocks);
  if (step_ == Step::kWait) return;
  // What another connection writes is not sent beside it over and over.
  probes_ = std::exchange(held_, false) && blocks.size() > 1;
  if (probes_) blocks.resize(1);
  queue_ = std::move(blocks);
  next_ = 0;
  failed_.reset();
  unsent_bytes_ = 0;
  for (const BlockPlace& place : queue_) unsent_bytes_ += size_of(place);
  step_ = Step::kSend;
  if (queue_.empty()) end_round();
}

// Leaves of what is missing what this writer is to send now. The first writer, when its own share
// is done, waits for the others while they get on, and does the rest when they do not.
void PushMachine::choose_share(std::vector<BlockPlace>& missing) {
  const auto is_ours = [&](const BlockPlace& place) { return writer_of(place) == options_.writer; };
  const bool has_ours = std::ranges::any_of(missing, is_ours);
  only_share_ = !leads() || has_ours;
  if (only_share_) {
    std::erase_if(missing, std::not_fn(is_ours));
  } else if (!missing.empty() && tries_ < options_.retries) {
    wait_ = wait_after(++tries_, options_.first_wait);
    step_ = Step::kWait;
    then_ = Step::kAskServing;
  }
}

// The data, all entries in a row, is cut into even parts.
unsigned PushMachine::writer_of(const BlockPlace& place) const {
  const std::uint64_t offset = begins_bytes_[place.entry] + place.block * kBlockBytes;
  return static_cast<unsigned>(offset / (total_bytes_ / options_.writers + 1));
}

// The blocks of the runs, in order. Errors: kCorrupt for runs that are not on our grid, or overlap.
Result<std::vector<BlockPlace>> PushMachine::places(
    const std::vector<BlockLedger::Run>& missing) const {
  const Error bad(ErrorCode::kCorrupt,
                  "the server's answer says `missing` in a way that fits no upload of ours");
  std::uint64_t left = 0;
  for (const std::uint64_t size : sizes_bytes_) left += block_count(size);
  std::vector<BlockPlace> blocks;
  for (const auto& [entry, first, count] : missing) {
    const std::uint64_t has = entry < sizes_bytes_.size() ? block_count(sizes_bytes_[entry]) : 0;
    if (count > has || first > has - count || count > left) return bad;
    left -= count;
    for (std::uint64_t block = first; block < first + count; ++block) {
      blocks.push_back({entry, block});
    }
  }
  std::ranges::sort(blocks);
  if (std::ranges::adjacent_find(blocks) != blocks.end()) return bad;
  return blocks;
}

std::vector<BlockPlace> PushMachine::take(std::uint64_t limit_bytes) {
  WEFT_CHECK(step_ == Step::kSend);
  std::vector<BlockPlace> batch;
  std::uint64_t batch_bytes = 0;
  while (!failed_ && next_ < queue_.size()) {
    const std::uint64_t size = size_of(queue_[next_]);
    if (!batch.empty() && batch_bytes + size > limit_bytes) break;
    batch.push_back(queue_[next_++]);
    batch_bytes += size;
  }
  unsent_bytes_ -= batch_bytes;
  if (!batch.empty()) ++under_way_;
  return batch;
}

void PushMachine::sent(const Result<Counts>& answer, std::uint64_t content_bytes,
                       std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kSend && under_way_ > 0);
  --under_way_;
  std::optional<Error> error;
  if (!answer) {
    error = answer.error();
  } else if (answer->busy > 0) {
    held_ = true;
    error = Error(ErrorCode::kOverloaded,
                  "another connection still writes " + counted(answer->busy, "block"));
  } else {
    verified_bytes_ += content_bytes;
  }
  // What cannot be mended counts before what can.
  if (error && (!failed_ || can_resume(failed_->code()))) {
    failed_ = std::move(error);
    // What a connection that is gone holds opens by itself, but not before five quick tries are
    // over.
    failed_retry_after_ = answer ? std::optional(kBusyWait) : retry_after;
  }
  if (under_way_ == 0 && (failed_ || next_ == queue_.size())) end_round();
}

void PushMachine::end_round() {
  share_sent_ = share_sent_ || (!probes_ && next_ == queue_.size());
  if (failed_) return reopen(Error(*failed_), failed_retry_after_);
  if (probes_ || (leads() && only_share_)) {
    step_ = Step::kOpen;
  } else {
    step_ = leads() ? Step::kSeal : Step::kDone;
  }
}

void PushMachine::sealed(const Result<std::string>& id, std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kSeal);
  if (!id) return repeat(id.error(), retry_after);
  // Not again: a commit that is refused each time would be tried for ever.
  if (id_.empty()) tries_ = 0;
  id_ = *id;
  step_ = options_.commit ? Step::kCommit : Step::kDone;
}

void PushMachine::committed(const Result<std::string>& id,
                            std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kCommit);
  committing_ = true;
  if (!id) return repeat(id.error(), retry_after);
  id_ = *id;
  step_ = Step::kDone;
}

void PushMachine::dropped() {
  WEFT_CHECK(step_ == Step::kDrop);
  upload_.clear();
  step_ = then_;
}

void PushMachine::waited() {
  WEFT_CHECK(step_ == Step::kWait);
  step_ = then_;
}

void PushMachine::give_up(const Error& error) {
  WEFT_CHECK(under_way_ == 0);
  fail(error);
}

// For calls that may be repeated as they are: their answer may be all that was lost.
void PushMachine::repeat(const Error& error, std::optional<Milliseconds> retry_after) {
  if (!is_passing(error.code())) return reopen(error, retry_after);
  retry(error, retry_after, step_);
}

// Asks again what the server has, and goes on from there.
void PushMachine::reopen(const Error& error, std::optional<Milliseconds> retry_after) {
  // A process that does not know the upload is a new one, whatever it serves.
  if (error.code() == ErrorCode::kNotFound) before_.reset();
  retry(error, retry_after, Step::kAskServing);
}

void PushMachine::retry(const Error& error, std::optional<Milliseconds> retry_after, Step then) {
  if (!can_resume(error.code())) return fail(error);
  if (retry_after) {
    // It counts in seconds, and what the server waits for is often over in milliseconds: so we ask
    // earlier at first.
    wait_ = std::min({std::max(*retry_after, options_.first_wait), kLongestWish,
                      options_.first_wait * (1 << std::min(wishes_++, 10u))});
    waited_ += wait_;
    if (waited_ > options_.patience) return fail(error);
  } else {
    if (++tries_ > options_.retries) return fail(error);
    wait_ = wait_after(tries_, options_.first_wait);
  }
  ++resumed_;
  step_ = Step::kWait;
  then_ = then;
}

void PushMachine::fail(const Error& error) {
  error_ = error;
  // So that the next push need not wait for the lease. What passes may be resumed by the same
  // owner, and a shared upload is not ours to drop.
  const bool may_resume = is_passing(error.code()) && lost_ <= options_.retries;
  const bool drops = !upload_.empty() && !may_resume && options_.writers == 1;
  step_ = drops ? Step::kDrop : Step::kFailed;
  then_ = Step::kFailed;
}

std::uint64_t PushMachine::size_of(const BlockPlace& place) const {
  return block_length(sizes_bytes_[place.entry], place.block);
}

}  // namespace weft
