#include "weft/transfer/puller.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/format/json.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/pull_machine.h"
#include "weft/transfer/follower.h"
#include "weft/transfer/internal/answers.h"
#include "weft/transfer/internal/crew.h"
#include "weft/transfer/internal/pull_fetch.h"
#include "weft/transfer/internal/retry.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using Step = PullMachine::Step;
using internal::Answer;

http::Request get(std::string target) {
  http::Request request;
  request.method = "GET";
  request.target = "/weft/v1" + std::move(target);
  return request;
}

Result<std::string> body_of(Answer answer) {
  if (!answer.response) return answer.response.error();
  return std::move(answer.response->body);
}

PullMachine::Options machine_options(const PullOptions& options) {
  PullMachine::Options machine;
  machine.retries = options.retries;
  machine.first_wait = options.first_wait;
  machine.sources = 1 + options.mirrors.size();
  return machine;
}

// Carries out what a PullMachine says.
class Pull {
 public:
  Pull(http::Client& source, const std::string& id, PullTarget& target, const PullOptions& options)
      : source_(source),
        target_(target),
        options_(options),
        machine_(id, machine_options(options)) {}

  Result<PullReport> blocking_run() {
    const auto start = Clock::now();
    while (machine_.step() != Step::kDone && machine_.step() != Step::kFailed) blocking_step();
    if (machine_.step() == Step::kFailed) return machine_.error();
    // A version without a byte has come to its end without this.
    if (!prepared_) {
      WEFT_TRY_VOID(target_.blocking_prepare(machine_.id(), machine_.content(), all_digests()));
    }
    show_progress();  // of what was held
    WEFT_TRY_VOID(target_.blocking_finish());
    PullReport report;
    report.id = machine_.id();
    report.manifest = machine_.content();
    report.digests = all_digests();
    report.total_bytes = machine_.total_bytes();
    report.held_bytes = machine_.held_bytes();
    report.fetched_bytes = report.total_bytes - report.held_bytes;
    report.resumed = machine_.resumed();
    report.corrupt_blocks = machine_.corrupt();
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

 private:
  void blocking_step() {
    const std::string version = "/versions/" + machine_.id();
    switch (machine_.step()) {
      case Step::kManifest: {
        const Answer answer = blocking_call(get(version + "/manifest"));
        return machine_.manifest(body_of(answer), answer.retry_after);
      }
      case Step::kBlocks: {
        const Answer answer = blocking_call(get(version + "/blocks"));
        return machine_.blocks(body_of(answer), answer.retry_after);
      }
      case Step::kFetch:
        return prepared_ ? blocking_fetch_round() : blocking_prepare();
      case Step::kWait:
        std::this_thread::sleep_for(machine_.wait());
        return machine_.waited();
      case Step::kDone:
      case Step::kFailed:
        return;
    }
  }

  Answer blocking_call(const http::Request& request) {
    return internal::answer_of(client(machine_.source()).blocking_send(request));
  }

  http::Client& client(std::size_t source) const {
    return source == 0 ? source_ : *options_.mirrors[source - 1];
  }

  // Makes room, and takes over what is at hand.
  void blocking_prepare() {
    prepared_ = true;
    const auto held = target_.blocking_prepare(machine_.id(), machine_.content(), all_digests());
    if (!held) return machine_.give_up(held.error());
    hold(held->blocks);
    if (held->maybe_more)
      blocking_hold([this](const BlockPlace& place, std::span<std::byte> scratch) {
        return blocking_has(place, scratch);
      });
    if (options_.base == nullptr || machine_.step() != Step::kFetch) return;
    index_base();
    blocking_hold([this](const BlockPlace& place, std::span<std::byte> scratch) {
      return blocking_copy(place, scratch);
    });
  }

  // Holds each block that `has` finds.
  void blocking_hold(
      const std::function<Result<bool>(const BlockPlace&, std::span<std::byte>)>& has) {
    std::vector<BlockPlace> places;
    for (std::size_t entry = 0; entry < machine_.entries().size(); ++entry) {
      for (std::size_t block = 0; block < machine_.digests(entry).size(); ++block) {
        places.push_back({entry, block});
      }
    }
    std::size_t next = 0;
    std::optional<Error> failed;
    std::vector<BlockPlace> found;
    crew_.blocking_run(threads(), "weft-pull", [&](std::unique_lock<std::mutex>& lock) {
      const auto scratch = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
      while (next < places.size() && !failed) {
        const BlockPlace place = places[next++];
        lock.unlock();
        const auto held = has(place, std::span(scratch.get(), length_of(place)));
        lock.lock();
        if (!held) failed = held.error();
        if (held && *held) found.push_back(place);
      }
    });
    if (failed) return machine_.give_up(*failed);
    hold(found);
  }

  void hold(std::span<const BlockPlace> places) {
    for (const BlockPlace& place : places) {
      if (machine_.step() == Step::kFetch) machine_.hold(place);
    }
  }

  // Is it in the target?
  Result<bool> blocking_has(const BlockPlace& place, std::span<std::byte> scratch) const {
    WEFT_TRY(const auto bytes, target_.blocking_read(place.entry, offset_of(place), scratch));
    return digest_of(place, bytes) == wanted(place);
  }

  // Is it in the base? Then it goes to the target.
  Result<bool> blocking_copy(const BlockPlace& place, std::span<std::byte> scratch) {
    const std::optional<std::size_t> found = base_entries_[place.entry];
    if (!found) return false;
    const bool is_known = options_.base_digests != nullptr;
    if (is_known && (*options_.base_digests)[*found][place.block] != wanted(place)) return false;
    WEFT_TRY(const auto bytes, options_.base->blocking_read(*found, offset_of(place), scratch));
    const auto into = target_.place(place.entry, offset_of(place), scratch);
    if (into.data() != bytes.data()) std::memcpy(into.data(), bytes.data(), bytes.size());
    // Of the copy: what is at hand may be changing.
    if (digest_of(place, into) != wanted(place)) return false;
    WEFT_TRY_VOID(target_.blocking_write(place.entry, offset_of(place), into));
    return true;
  }

  // The base's entry of the same name and form, for each of ours.
  void index_base() {
    const TensorSource& base = *options_.base;
    std::map<std::string_view, std::size_t> tensors, files;
    for (const TensorSpec& spec : base.tensors()) tensors.emplace(spec.name, tensors.size());
    for (const OfferedFile& file : base.files()) files.emplace(file.name, files.size());
    for (const ManifestTensor& tensor : machine_.content().tensors) {
      const auto at = tensors.find(tensor.spec.name);
      const bool fits = at != tensors.end() && base.tensors()[at->second] == tensor.spec;
      base_entries_.push_back(fits ? std::optional(at->second) : std::nullopt);
    }
    for (const ManifestFile& file : machine_.content().files) {
      const auto at = files.find(file.name);
      const bool fits = at != files.end() && base.files()[at->second].size_bytes == file.size_bytes;
      base_entries_.push_back(fits ? std::optional(base.tensors().size() + at->second)
                                   : std::nullopt);
    }
  }

  void blocking_fetch_round() {
    show_progress();
    crew_.blocking_run(
        threads(), "weft-pull",
        [&](std::unique_lock<std::mutex>& lock) {
          while (machine_.step() == Step::kFetch && !target_error_) {
            if (const auto fetch = machine_.take()) {
              ++under_way_;
              blocking_fetch(*fetch, lock);
              --under_way_;
              crew_.change();
            } else if (under_way_ > 0) {
              crew_.blocking_wait(lock);  // a block of theirs may come wrong
            } else {
              return;
            }
          }
        },
        [&] { show_progress(); });
    if (target_error_) machine_.give_up(*target_error_);
  }

  void blocking_fetch(const PullMachine::Fetch& fetch, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    internal::FetchSink sink(fetch, machine_, target_, helper_, lock);
    Answer answer =
        internal::answer_of(client(fetch.source).blocking_send_into(request_of(fetch), sink));
    Result<void> result;
    if (!answer.response) {
      result = answer.response.error();
    } else if (!fetch.is_all && answer.response->status == 200) {
      result = take_from_whole(fetch, answer.response->body, sink);
    }
    if (result && !sink.is_complete()) {
      result = Error(ErrorCode::kCorrupt,
                     fmt::format("{}: the answer has fewer bytes than were asked for",
                                 client(fetch.source).server().text()));
    }
    lock.lock();
    if (sink.error()) target_error_ = sink.error();
    machine_.fetched(fetch, result, answer.retry_after);
  }

  // A server that knows no ranges has sent all of it.
  static Result<void> take_from_whole(const PullMachine::Fetch& fetch, std::string_view whole,
                                      internal::FetchSink& sink) {
    if (whole.size() < fetch.begin_bytes) return {};
    return sink.take(std::as_bytes(std::span(whole.substr(fetch.begin_bytes, fetch.size_bytes))));
  }

  http::Request request_of(const PullMachine::Fetch& fetch) const {
    const std::size_t entry = fetch.pieces.front().place.entry;
    http::Request request =
        fetch.by_digest ? get("/blobs/" + digest_text(machine_.entries()[entry].digest))
                        : get(fmt::format("/versions/{}/packs/{}", machine_.id(), fetch.pack));
    if (!fetch.is_all) {
      request.headers.add("Range", fmt::format("bytes={}-{}", fetch.begin_bytes,
                                               fetch.begin_bytes + fetch.size_bytes - 1));
    }
    return request;
  }

  unsigned threads() const { return std::max(1u, options_.connections); }
  std::uint64_t entry_bytes(const BlockPlace& place) const {
    return machine_.entries()[place.entry].size_bytes;
  }
  std::size_t length_of(const BlockPlace& place) const {
    return static_cast<std::size_t>(block_length(entry_bytes(place), place.block));
  }
  static std::uint64_t offset_of(const BlockPlace& place) { return place.block * kBlockBytes; }
  VersionDigests all_digests() const {
    VersionDigests all;
    for (std::size_t entry = 0; entry < machine_.entries().size(); ++entry) {
      const auto digests = machine_.digests(entry);
      all.emplace_back(digests.begin(), digests.end());
    }
    return all;
  }
  const Digest& wanted(const BlockPlace& place) const {
    return machine_.digests(place.entry)[place.block];
  }
  Digest digest_of(const BlockPlace& place, std::span<const std::byte> bytes) const {
    return block_digest(entry_bytes(place), place.block, bytes);
  }
  void show_progress() {
    const auto complete = machine_.take_complete();
    for (const std::size_t entry : complete) {
      if (options_.entry_done) options_.entry_done(entry);
    }
    if (options_.progress) options_.progress(machine_.verified_bytes(), machine_.total_bytes());
  }

  http::Client& source_;
  PullTarget& target_;
  const PullOptions& options_;
  PullMachine machine_;  // with the crew's lock while it works
  bool prepared_ = false;
  std::vector<std::optional<std::size_t>> base_entries_;  // [entries]
  HashHelper helper_;
  internal::Crew crew_;
  unsigned under_way_ = 0;
  std::optional<Error> target_error_;
};

struct Listed {
  std::string id;
  std::vector<std::string> labels;
};

Result<std::vector<Listed>> blocking_list(http::Client& source) {
  WEFT_TRY(const std::string body,
           body_of(internal::answer_of(source.blocking_send(get("/versions")))));
  const auto answer = parse_json(body);
  const auto* const object = answer ? answer->if_object() : nullptr;
  const auto* const list = object != nullptr ? object->if_contains("versions") : nullptr;
  if (list == nullptr || !list->is_array()) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}: /versions is no list of versions", source.server().text()));
  }
  std::vector<Listed> versions;
  for (const boost::json::value& value : list->get_array()) {
    if (!value.is_object()) continue;
    Listed version{string_member(value.get_object(), "id"), {}};
    const auto* const labels = value.get_object().if_contains("labels");
    const bool has_labels = labels != nullptr && labels->is_array();
    for (std::size_t i = 0; has_labels && i < labels->get_array().size(); ++i) {
      const boost::json::value& label = labels->get_array()[i];
      if (label.is_string()) version.labels.emplace_back(label.get_string());
    }
    if (try_parse_digest(version.id)) versions.push_back(std::move(version));
  }
  return versions;
}

Result<std::string> blocking_resolve_once(http::Client& source, std::string_view text) {
  constexpr std::string_view kAlgorithm = "blake3:";
  constexpr std::size_t kLeastDigits = 8;
  if (try_parse_digest(text)) return std::string(text);
  if (text.starts_with('#')) {
    WEFT_TRY(HeadPlace head, blocking_head(source, std::string(text.substr(1))));
    return std::move(head.id);
  }
  WEFT_TRY(const std::vector<Listed> versions, blocking_list(source));
  for (const Listed& version : versions) {
    if (std::ranges::count(version.labels, text) > 0) return version.id;
  }
  const bool has_algorithm = text.starts_with(kAlgorithm);
  const std::string start = (has_algorithm ? "" : std::string(kAlgorithm)) + std::string(text);
  std::vector<std::string> found;
  for (const Listed& version : versions) {
    const bool begins_so =
        start.size() >= kAlgorithm.size() + kLeastDigits && version.id.starts_with(start);
    if (begins_so) found.push_back(version.id);
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return Error(ErrorCode::kNotFound,
                 fmt::format("{} has no version `{}`", source.server().text(), text));
  }
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} versions at {} begin with `{}`", found.size(), source.server().text(), text));
}

}  // namespace

Result<PullReport> blocking_pull(http::Client& source, const std::string& id, PullTarget& target,
                                 const PullOptions& options) {
  if (!try_parse_digest(id)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("`{}` is no id: expected `blake3:` and 64 hex digits", id));
  }
  return Pull(source, id, target, options).blocking_run();
}

Result<std::string> blocking_resolve_version(http::Client& source, std::string_view text) {
  const PullOptions standard;
  return internal::blocking_retry(standard.retries, standard.first_wait,
                                  [&] { return blocking_resolve_once(source, text); });
}

}  // namespace weft
