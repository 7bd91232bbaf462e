#pragma once
// PushMachine: the sending side of one push. It says what to do next and is told what came of it.
// It decides what is sent again, what a refusal means, and when to give up. No sockets, clocks,
// threads or bytes: effects are the caller's. One thread (callers with several connections lock).
//
//   kAskServing -> kOpen -> kSend -> kSeal -> kCommit -> kDone
//
// From every step a failure leads to kWait and back: to the same call when only its answer may be
// lost, else to kAskServing and kOpen, which says what is still missing; or to kFailed. The rules
// are docs/protocol.md, "Pushing".

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/protocol/block_ledger.h"

namespace weft {

class PushMachine {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    unsigned retries = 5;  // failures in a row without a newly verified byte between them
    // All the waiting that the server asks for with Retry-After.
    Milliseconds patience{600'000};
    Milliseconds first_wait{100};  // before a retry; doubled with each that brings nothing
    bool commit = true;            // false: done when it is sealed
    // The skeleton has the digests. Without them the blocks of an earlier upload with the same
    // skeleton cannot be told from ours: the first opening replaces it, see replaces().
    bool announced = true;
    bool base = false;     // the skeleton names a base; unless `partial`, it can do without one
    bool partial = false;  // what is not sent is the base's
    // Several writers share one upload: each sends its part of the data. The first one also waits
    // for the others, sends what they leave, seals and commits; they are done when theirs is there.
    unsigned writer = 0, writers = 1;
  };
  enum class Step {
    kAskServing,  // GET status; then serving()
    kOpen,        // POST uploads, with the base if with_base(); then opened()
    kSend,        // take() batches, any number at a time; then sent() for each
    kSeal,        // then sealed()
    kCommit,      // then committed()
    kDrop,        // DELETE the upload; then dropped()
    kWait,        // for wait(); then waited()
    kDone,        // see id()
    kFailed,      // see error()
  };
  // What GET status says of the server.
  struct Serving {
    std::string id;
    std::string instance;  // another one: the server has restarted; "" where it does not say
  };
  // The answer to opening.
  struct Opened {
    std::string upload;
    std::uint64_t verified_bytes = 0;
    std::vector<BlockLedger::Run> missing;
  };
  // The answer to one body of blocks.
  struct Counts {
    std::uint64_t verified = 0, repeated = 0, busy = 0;
  };

  PushMachine(std::vector<std::uint64_t> entry_sizes_bytes, const Options& options);

  Step step() const { return step_; }

  // What came of the step. Errors are the server's (http::error_of_response) or the connection's;
  // `retry_after` as the answer had it. Requires: step() is the one that the call belongs to.
  void serving(const std::optional<Serving>& answer);  // none: the server does not say
  void opened(const Result<Opened>& answer, std::optional<Milliseconds> retry_after = {});
  void sealed(const Result<std::string>& id, std::optional<Milliseconds> retry_after = {});
  void committed(const Result<std::string>& id, std::optional<Milliseconds> retry_after = {});
  void dropped();  // whatever came of it
  void waited();
  // The caller gives up: what it read from its source is wrong. Requires: nothing is being sent.
  void give_up(const Error& error);

  // kSend: the next blocks to send in one body, at least one and no more than `limit_bytes` of
  // content together; none when all are under way or one failed. Each needs its sent(), with the
  // content's size; the step changes with the last one. Requires: step() is kSend.
  std::vector<BlockPlace> take(std::uint64_t limit_bytes);
  void sent(const Result<Counts>& answer, std::uint64_t content_bytes,
            std::optional<Milliseconds> retry_after = {});

  bool with_base() const { return with_base_; }
  // kOpen: the `replace` of the call. Without digests it begins a new upload, so it may not drop
  // the one that we have begun, nor one that others share.
  bool replaces() const { return options_.announced || (options_.writers == 1 && upload_.empty()); }
  Milliseconds wait() const { return wait_; }
  const std::string& upload() const { return upload_; }  // "" before it is open
  const std::string& id() const { return id_; }          // of the sealed version
  const Error& error() const { return *error_; }         // Requires: kFailed
  // Content, all of it and what the server has as far as we know.
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t verified_bytes() const { return verified_bytes_; }
  std::uint64_t skipped_bytes() const { return skipped_bytes_; }  // were there from the start
  std::uint64_t unsent_bytes() const { return unsent_bytes_; }    // not taken yet
  unsigned resumed() const { return resumed_; }  // how often something was taken up again

 private:
  Result<std::vector<BlockPlace>> places(const std::vector<BlockLedger::Run>& missing) const;
  void begin_round(const Opened& answer, std::vector<BlockPlace> blocks);
  void choose_share(std::vector<BlockPlace>& missing);
  unsigned writer_of(const BlockPlace& place) const;
  bool leads() const { return options_.writer == 0; }
  void end_round();
  void retry(const Error& error, std::optional<Milliseconds> retry_after, Step then);
  void reopen(const Error& error, std::optional<Milliseconds> retry_after);
  void repeat(const Error& error, std::optional<Milliseconds> retry_after);
  void fail(const Error& error);
  std::uint64_t size_of(const BlockPlace& place) const;

  const std::vector<std::uint64_t> sizes_bytes_;
  std::vector<std::uint64_t> begins_bytes_;  // [entries] where each begins in the data
  const Options options_;
  Step step_ = Step::kAskServing;
  Step then_ = Step::kAskServing;  // after kWait or kDrop
  Milliseconds wait_{0};
  bool with_base_;

  std::optional<Serving> before_;  // what was served when the push began
  std::string upload_;
  bool share_sent_ = false;  // all of it, once; some answers may have been lost
  bool committing_ = false;  // a commit was sent: it may have happened

  std::vector<BlockPlace> queue_;  // of this round
  std::size_t next_ = 0;           // in queue_
  unsigned under_way_ = 0;         // batches
  bool only_share_ = false;        // the round is of our share; others' may be missing
  bool held_ = false;              // another connection had blocks of the last round
  bool probes_ = false;            // the round is one block, to learn whether they are free
  std::optional<Error> failed_;    // in this round
  std::optional<Milliseconds> failed_retry_after_;

  unsigned tries_ = 0;
  unsigned lost_ = 0;       // uploads that the server forgot
  unsigned stale_ = 0;      // uploads that were another version's
  Milliseconds waited_{0};  // at the server's wish
  unsigned wishes_ = 0;     // in a row
  std::uint64_t best_verified_bytes_ = 0;

  std::uint64_t total_bytes_ = 0;
  std::uint64_t verified_bytes_ = 0;
  std::uint64_t skipped_bytes_ = 0;
  std::uint64_t unsent_bytes_ = 0;
  unsigned resumed_ = 0;
  std::string id_;
  std::optional<Error> error_;
};

}  // namespace weft
