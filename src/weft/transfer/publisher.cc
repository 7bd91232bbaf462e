#include "weft/transfer/publisher.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/protocol/push_machine.h"
#include "weft/transfer/internal/answers.h"
#include "weft/transfer/internal/blocks_body.h"
#include "weft/transfer/internal/crew.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using Step = PushMachine::Step;
using internal::Answer;

// One body carries no more than this, so that a cut costs little and progress is seen.
constexpr std::uint64_t kBatchBytes = 128ull << 20;
// As much content is encoded before its body is sent.
constexpr std::uint64_t kShortBatchBytes = 4 * kBlockBytes;
// Blocks whose base is found wrong, one by one; then none is tried any more.
constexpr unsigned kMostConflicts = 4;
// Of a body's content. Where the changes since the base save less, they were not worth the time,
// and the next body goes without them, then three, seven, ...
constexpr std::uint64_t kLeastSavedShare = 4;
constexpr unsigned kMostSkipped = 63;

std::string random_session() {
  std::random_device random;
  return fmt::format("push-{:08x}{:08x}", random(), random());
}

PushMachine::Options machine_options(const PushOptions& options, bool announced) {
  PushMachine::Options machine;
  machine.retries = options.retries;
  machine.first_wait = options.first_wait;
  machine.commit = options.commit;
  machine.announced = announced;
  machine.base = !options.base.empty();
  machine.partial = options.partial;
  machine.writer = options.writer;
  machine.writers = options.writers;
  return machine;
}

// Carries out what a PushMachine says.
class Push {
 public:
  Push(http::Client& server, internal::BlocksFrom from, const PushOptions& options)
      : server_(server),
        options_(options),
        session_(options.session.empty() ? random_session() : options.session),
        from_(std::move(from)),
        machine_(from_.sizes_bytes, machine_options(options, from_.digests != nullptr)) {
    if (options.base_source != nullptr) index_base();
  }

  Result<PushReport> blocking_run() {
    const auto start = Clock::now();
    while (machine_.step() != Step::kDone && machine_.step() != Step::kFailed) blocking_step();
    if (machine_.step() == Step::kFailed) return machine_.error();
    report_.id = machine_.id();
    report_.total_bytes = machine_.total_bytes();
    report_.skipped_bytes = machine_.skipped_bytes();
    report_.resumed = machine_.resumed();
    report_.fell_back = in_full_.size();
    if (machine_.with_base()) report_.base = options_.base;
    report_.send_seconds = seconds_since(start) - report_.commit_seconds;
    return report_;
  }

 private:
  void blocking_step() {
    switch (machine_.step()) {
      case Step::kAskServing:
        return machine_.serving(internal::parse_serving(blocking_call("GET", "/status", "")));
      case Step::kOpen:
        return blocking_open();
      case Step::kSend:
        return blocking_send_round();
      case Step::kSeal:
        return blocking_seal();
      case Step::kCommit:
        return blocking_commit();
      case Step::kDrop:
        blocking_call("DELETE", upload_path(""), "");
        return machine_.dropped();
      case Step::kWait:
        std::this_thread::sleep_for(machine_.wait());
        return machine_.waited();
      case Step::kDone:
      case Step::kFailed:
        return;
    }
  }

  void blocking_open() {
    const bool with_base = machine_.with_base();
    const std::string base = with_base ? options_.base : "";
    const Answer answer =
        blocking_call("POST", "/uploads",
                      internal::skeleton_json(*from_.source, from_.digests, base, options_.partial,
                                              machine_.replaces()));
    auto opened = internal::parse_opened(answer);
    if (!opened) return machine_.opened(opened.error(), answer.retry_after);
    shorthand_ = {};
    shorthand_.zstd = options_.zstd && opened->takes_zstd;
    shorthand_.zstd_level = options_.zstd_level;
    shorthand_.delta = opened->takes_delta;
    patch_mode_ = opened->patch_mode;
    fall_back(*opened);
    const bool uses_base = with_base && options_.base_source != nullptr;
    if (uses_base && (opened->takes_delta || opened->takes_sparse)) {
      shorthand_.read_base = [this](const BlockPlace& place, std::span<std::byte> scratch) {
        return blocking_read_base(place, scratch);
      };
    }
    machine_.opened(std::move(opened->opened));
    show_progress();
  }

  // Blocks whose deltas were refused go in full: of each body the first that is still missing,
  // since those behind it were not read. In patch mode there is nothing to fall back to.
  void fall_back(const internal::OpenAnswer& opened) {
    for (const Refused& refused : std::exchange(refused_, {})) {
      const auto broken = std::ranges::find_if(
          refused.based, [&](const BlockPlace& place) { return is_missing(opened.opened, place); });
      const bool is_over = opened.opened.upload != machine_.upload();
      if (broken == refused.based.end() || is_over || opened.patch_mode) continue;
      log_warning("push: the delta of a block was refused, it goes in full: {}",
                  refused.error.message());
      in_full_.insert(*broken);
      const bool is_wrong_base = refused.error.code() == ErrorCode::kConflict;
      if (is_wrong_base && ++conflicts_ == kMostConflicts) fall_back_to_full(opened.opened);
    }
  }

  // So often: the base's source has not got what the server has.
  void fall_back_to_full(const PushMachine::Opened& opened) {
    log_warning("push: what is at hand is not the base {}: the rest goes in full", options_.base);
    for (const auto& [entry, first, blocks] : opened.missing) {
      for (std::uint64_t i = 0; has_base(entry) && i < blocks; ++i)
        in_full_.insert({entry, first + i});
    }
  }

  static bool is_missing(const PushMachine::Opened& opened, const BlockPlace& place) {
    return std::ranges::any_of(opened.missing, [&](const BlockLedger::Run& run) {
      return run.tensor == place.entry && place.block >= run.first_block &&
             place.block - run.first_block < run.blocks;
    });
  }

  // The base's entries by name; only tensors are worth it.
  void index_base() {
    const auto& specs = options_.base_source->tensors();
    std::map<std::string_view, std::size_t> by_name;
    for (std::size_t i = 0; i < specs.size(); ++i) by_name[specs[i].name] = i;
    for (const TensorSpec& spec : from_.source->tensors()) {
      const auto found = by_name.find(spec.name);
      const bool is_alike = found != by_name.end() && specs[found->second] == spec;
      base_entries_.push_back(is_alike ? std::optional(found->second) : std::nullopt);
    }
  }

  bool has_base(std::uint64_t entry) const {
    return entry < base_entries_.size() && base_entries_[entry];
  }

  // A base that cannot be read is no reason to fail.
  std::optional<std::span<const std::byte>> blocking_read_base(const BlockPlace& place,
                                                               std::span<std::byte> scratch) {
    if (!has_base(place.entry) || in_full_.contains(place)) return std::nullopt;
    const auto bytes = options_.base_source->blocking_read(*base_entries_[place.entry],
                                                           place.block * kBlockBytes, scratch);
    if (bytes) return *bytes;
    if (!base_failed_.exchange(true))
      log_warning("push: the base cannot be read, the rest goes in full: {}",
                  bytes.error().message());
    return std::nullopt;
  }

  // Sends what is missing, on all connections, until the machine has heard of each batch.
  void blocking_send_round() {
    const bool is_short = shorthand_.zstd || shorthand_.read_base;
    const unsigned connections = std::max(1u, options_.connections);
    // Smaller ones towards the end, so that all connections end together.
    const auto limit_bytes = [&] {
      const std::uint64_t share = machine_.unsent_bytes() / (2ull * connections);
      return is_short ? kShortBatchBytes : std::clamp(share, kBlockBytes, kBatchBytes);
    };
    const auto threads = static_cast<unsigned>(
        std::min<std::uint64_t>(connections, 1 + machine_.unsent_bytes() / kBlockBytes));
    crew_.blocking_run(
        threads, "weft-push",
        [&](std::unique_lock<std::mutex>& lock) {
          while (machine_.step() == Step::kSend) {
            const auto batch = machine_.take(limit_bytes());
            if (batch.empty()) return;
            internal::Shorthand shorthand = shorthand_;
            if (skips_base()) shorthand.read_base = nullptr;
            shorthand.zstd || shorthand.read_base ? blocking_send_short(shorthand, batch, lock)
                                                  : blocking_send_plain(batch, lock);
            crew_.change();
          }
        },
        options_.progress ? [this] { show_progress(); } : std::function<void()>());
    if (source_error_) machine_.give_up(*source_error_);
  }

  void blocking_send_plain(const std::vector<BlockPlace>& batch,
                           std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    internal::PlainBody body(from_, batch);
    const Answer answer = internal::answer_of(server_.blocking_send_source(blocks_request(), body));
    lock.lock();
    if (body.error()) source_error_ = body.error();
    const BytesByEncoding payload_bytes{body.content_bytes()};
    take_answer(answer, body.content_bytes(), body.size_bytes(), payload_bytes);
  }

  // What takes changes alone gets nothing else.
  bool skips_base() {
    if (bodies_to_skip_ == 0 || patch_mode_) return false;
    --bodies_to_skip_;
    return true;
  }
  void note_saving(std::uint64_t content_bytes, std::uint64_t body_bytes) {
    const bool is_worth_it = body_bytes <= content_bytes - content_bytes / kLeastSavedShare;
    last_skip_ = is_worth_it ? 0 : std::min(2 * last_skip_ + 1, kMostSkipped);
    bodies_to_skip_ = last_skip_;
  }

  void blocking_send_short(const internal::Shorthand& shorthand,
                           const std::vector<BlockPlace>& batch,
                           std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::uint64_t content_bytes = 0, body_bytes = 0;
    for (const BlockPlace& place : batch) content_bytes += from_.size_of(place);
    const auto body = internal::ShortBody::blocking_make(from_, shorthand, batch);
    if (!body) {
      lock.lock();
      source_error_ = body.error();
      return machine_.sent(body.error(), content_bytes);
    }
    const auto parts = body->parts();
    for (const auto& part : parts) body_bytes += part.size();
    Answer answer =
        internal::answer_of(server_.blocking_send_from(blocks_request(), parts, nullptr));
    lock.lock();
    if (shorthand.read_base) note_saving(content_bytes, body_bytes);
    if (!body->based().empty()) note_refusal(answer, body->based());
    take_answer(answer, content_bytes, body_bytes, body->payload_bytes());
  }

  // A payload broke, or its base is not the server's, or the server has none in that form
  // (kInvalidArgument), or reads another version of the format (kUnsupported). Whatever it was, it
  // is tried again.
  void note_refusal(Answer& answer, const std::vector<BlockPlace>& based) {
    if (answer.response) return;
    const Error error = answer.response.error();
    const bool is_refusal =
        error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kConflict ||
        error.code() == ErrorCode::kUnsupported || error.code() == ErrorCode::kInvalidArgument;
    if (!is_refusal) return;
    refused_.push_back({based, error});
    answer.response = Error(ErrorCode::kConflict, error.message());
  }

  void take_answer(const Answer& answer, std::uint64_t content_bytes, std::uint64_t body_bytes,
                   const BytesByEncoding& payload_bytes) {
    const auto counts = internal::parse_counts(answer);
    report_.sent_bytes += body_bytes;
    for (std::size_t i = 0; counts && i < payload_bytes.size(); ++i) {
      report_.payload_bytes[i] += payload_bytes[i];
    }
    machine_.sent(counts, content_bytes, answer.retry_after);
  }

  void blocking_seal() {
    const auto start = Clock::now();
    const Answer answer = blocking_call("POST", upload_path("/seal"), "");
    machine_.sealed(internal::parse_sealed(answer), answer.retry_after);
    report_.commit_seconds += seconds_since(start);
  }

  void blocking_commit() {
    const auto start = Clock::now();
    const Answer answer =
        blocking_call("POST", upload_path("/commit"), internal::commit_json(options_));
    const auto committed = internal::parse_committed(answer);
    if (committed) {
      report_.stall_us = static_cast<double>(committed->stall_us);
      report_.converted = committed->converted;
    }
    machine_.committed(committed ? Result<std::string>(committed->id) : committed.error(),
                       answer.retry_after);
    report_.commit_seconds += seconds_since(start);
  }

  Answer blocking_call(const char* method, const std::string& path, std::string body) {
    http::Request call = request(method, path);
    call.headers.add("Content-Type", "application/json");
    call.body = std::move(body);
    return internal::answer_of(server_.blocking_send(call));
  }

  http::Request blocks_request() const {
    http::Request put = request("PUT", upload_path("/blocks"));
    put.headers.add("Content-Type", "application/octet-stream");
    return put;
  }

  http::Request request(const char* method, const std::string& path) const {
    http::Request request;
    request.method = method;
    request.target = "/weft/v1" + path;
    request.headers.add(std::string(kSessionHeader), session_);
    return request;
  }

  std::string upload_path(const char* action) const {
    return "/uploads/" + machine_.upload() + action;
  }

  void show_progress() const {
    if (options_.progress) options_.progress(machine_.verified_bytes(), machine_.total_bytes());
  }

  http::Client& server_;
  const PushOptions& options_;
  const std::string session_;
  const internal::BlocksFrom from_;
  PushMachine machine_;  // with the crew's lock while it works
  internal::Shorthand shorthand_;
  std::vector<std::optional<std::size_t>> base_entries_;  // [tensors]
  struct Refused {
    std::vector<BlockPlace> based;  // of one body
    Error error;
  };
  std::vector<Refused> refused_;  // since the last opening
  unsigned conflicts_ = 0;
  std::set<BlockPlace> in_full_;  // though there is a base; constant while blocks are sent
  std::atomic<bool> base_failed_ = false;
  bool patch_mode_ = false;
  unsigned bodies_to_skip_ = 0, last_skip_ = 0;  // of deltas: what comes next goes without
  internal::Crew crew_;
  std::optional<Error> source_error_;
  PushReport report_;
};

}  // namespace

Result<PushReport> blocking_push(http::Client& server, const TensorSource& source,
                                 const PushOptions& options) {
  const auto start = Clock::now();
  WEFT_TRY(std::vector<std::uint64_t> sizes, entry_sizes(source));
  VersionDigests hashed;
  const VersionDigests* digests = options.digests;
  const bool announces = options.announce == Announce::kAlways ||
                         (options.announce == Announce::kAutomatic && !source.is_costly());
  if (digests == nullptr && announces) {
    const unsigned threads =
        std::clamp(std::thread::hardware_concurrency(), 1u, std::max(1u, options.connections));
    WEFT_TRY(hashed, blocking_hash_source(source, threads));
    digests = &hashed;
  }
  const double hash_seconds = seconds_since(start);
  auto report = Push(server, {&source, std::move(sizes), digests}, options).blocking_run();
  if (!report) return report;
  report->hash_seconds = hash_seconds;
  report->total_seconds = seconds_since(start);
  return report;
}

Result<PushReport> blocking_push(http::Client& server, std::span<const TensorView> tensors,
                                 const PushOptions& options) {
  WEFT_TRY(const MemorySource source, MemorySource::create(tensors));
  return blocking_push(server, source, options);
}

}  // namespace weft
